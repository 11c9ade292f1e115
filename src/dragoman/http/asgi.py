"""The few names of ASGI, and one request as the handlers see it.

An `Exchange` is one HTTP request and its answer. It reads the body within its limits, sends a whole
body or a stream, and remembers what was sent, so that the layers around it need not wrap `send` and
cost nothing per chunk. A request for a WebSocket is an exchange too, until it is accepted: before
that it can be answered like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl

from dragoman.errors import BadRequest, DragomanError, RequestTimeout, TooLarge
from dragoman.http.cancellation import Disconnected
from dragoman.protocols.shared import openai

if TYPE_CHECKING:
    from dragoman.http.router import RouteMatch

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
PING = b": keep-alive\n\n"
WEBSOCKET = "WEBSOCKET"  # stands for the method of a request for one
MAX_QUERY_FIELDS = 100
DIRECT_WRITER = "dragoman.writer"  # where our own connections put their direct way to the client
_REFUSAL = "websocket.http.response"  # an extension: refusing with an answer of one's own
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class RequestContext:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.request_id = request_id
        self.is_websocket = scope["type"] == "websocket"
        self.method: str = WEBSOCKET if self.is_websocket else scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        self.match: RouteMatch | None = None  # what stands at the path, once it was looked up
        self.params: dict[str, str] = {}  # the path's, by the names in its pattern
        self.owner = ""  # a digest of the key that was shown, where keys are wanted
        self.headers: list[Header] = [(b"x-request-id", request_id.encode())]
        self.messages = self.header(b"anthropic-version") is not None  # the dialect of the client
        if self.messages:
            self.headers.append((b"request-id", request_id.encode()))
        self.ping = PING  # sent into every long silence of a stream; a dialect may have its own
        self.status: int | None = None  # of the answer, once its headers are out
        self.error_code: str | None = None  # of the error that was answered or broke the stream
        self.route = ""  # the pattern that matched, for metrics
        # these two are the route's
        self.write_error: Callable[[DragomanError, str], bytes] = openai.encode_error
        self.status_of: Callable[[DragomanError], int] = lambda error: error.status

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    @cached_property
    def _queries(self) -> list[tuple[str, str]]:
        text = self.scope.get("query_string", b"").decode("latin-1")
        try:
            return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
        except ValueError:
            raise BadRequest("The query of the address is malformed.") from None

    @property
    def query(self) -> dict[str, str]:
        """What stands behind the question mark; of a name that comes twice, the last."""
        return dict(self._queries)

    def query_values(self, name: str) -> list[str]:
        """All values of a name, said as `name=a&name=b` or as `name[]=a&name[]=b`."""
        return [value for key, value in self._queries if key in (name, f"{name}[]")]

    async def read_body(self, limit: int, timeout: float) -> bytes:
        """The whole body, or an error once it is too large or too slow."""
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise too_large(limit)
        try:
            async with asyncio.timeout(timeout):
                return await self._read(limit)
        except TimeoutError:
            raise RequestTimeout("The request's body did not arrive in time.") from None

    async def _read(self, limit: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def wait_disconnected(self) -> None:
        """Return when the client has disconnected. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def start_response(self, status: int, headers: Iterable[Header]) -> None:
        self.status = status
        every = [*headers, *self.headers]
        await self._say({"type": "http.response.start", "status": status, "headers": every})

    async def _say(self, message: Message) -> None:
        """Send a part of an answer, also where a WebSocket was asked for."""
        if not self.is_websocket:
            told = message
        elif _REFUSAL in (self.scope.get("extensions") or {}):
            told = {**message, "type": f"websocket.{message['type']}"}
        elif message["type"] == "http.response.start":  # such a server has one refusal only
            told = {"type": "websocket.close", "code": 1008}
        else:
            return
        try:
            await self.send(told)
        except OSError:  # what servers say when the client has left
            raise Disconnected from None

    async def send_response(
        self, status: int, body: bytes, kind: bytes = JSON, headers: Iterable[Header] = ()
    ) -> None:
        length = str(len(body)).encode()
        await self.start_response(status, [(b"content-type", kind), (b"content-length", length), *headers])
        shown = b"" if self.method == "HEAD" else body
        await self._say({"type": "http.response.body", "body": shown})


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request's body is larger than the {limit:,} bytes allowed.")
