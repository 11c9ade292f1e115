"""ASGI types, and one HTTP request as handlers see it.

A `RequestContext` is one request and its response. It reads the body within limits, sends a whole
body or a stream, and records what was sent, so that middleware need not wrap `send` and costs
nothing per chunk. A WebSocket handshake is a request, too: until it is accepted, it can be answered
like any other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    MutableMapping,
)
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from io import BytesIO
from itertools import islice
from os import urandom
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from websockets.frames import CloseCode

from dragoman.errors import BadRequest, DragomanError, RequestTimeout, TooLarge, UnsupportedMedia
from dragoman.http.cancellation import Disconnected, watch_awaitable
from dragoman.http.network.direct_request import DirectRequest
from dragoman.http.network.response_transport import DirectWriter, HeldWrites
from dragoman.keys.scopes import RouteName
from dragoman.protocols.dialect import Dialect
from dragoman.protocols.shared import openai
from dragoman.telemetry.record import RequestRecord
from dragoman.types.limits import RateLimitStatus

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
Access: TypeAlias = Literal["open", "key", "admin"]
Authorize: TypeAlias = Callable[[], Awaitable[AbstractContextManager[None]]]

JSON = b"application/json"
WEBSOCKET = "WEBSOCKET"  # used as the method of a WebSocket handshake
TRACE_HEADERS = (b"traceparent", b"tracestate")
PLAIN_ENCODINGS = ((b"content-encoding", b"identity"), (b"transfer-encoding", b"chunked"))
MAX_QUERY_FIELDS = 100
RENEWAL = 64 << 10  # bytes of a body; after each such number, the timeout starts again
MAX_WARNINGS, MAX_WARNING_LENGTH = 16, 300
DIRECT_WRITER = "dragoman.writer"  # scope key: our own connections put their direct writer here
DIRECT_REQUEST = "dragoman.request"  # scope key: our own connections put a `DirectRequest` here
REQUEST = "dragoman"  # scope key: the `RequestContext`
HEALTH_ONLY = "dragoman.health_only"  # scope key: the connection may only serve health checks
SEPARATE_WRITES = nullcontext()
_UNPRINTABLE = re.compile(r"[^ -~]")
_REJECT_EXTENSION = "websocket.http.response"  # ASGI: reject a handshake with a full response
# Where no route says otherwise, errors have OpenAI's form.
DEFAULT_DIALECT: Dialect[object] = Dialect(name="default", encode_error=openai.encode_error)


async def _allow() -> AbstractContextManager[None]:
    return nullcontext()


def _get_no_limits() -> None: ...


def _ignore_error(error: DragomanError) -> None: ...


class RequestContext:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.request_id = request_id
        # a repeated header has its first value
        self.headers: dict[bytes, bytes] = dict(list(scope["headers"])[::-1])
        self.is_websocket = scope["type"] == "websocket"
        # of our own connections; that of a WebSocket sends messages
        self.direct_writer: DirectWriter | None = (
            None if self.is_websocket else scope.get(DIRECT_WRITER)
        )
        self.method: str = WEBSOCKET if self.is_websocket else scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        self.params: dict[str, str] = {}  # path parameters, by the names in the route's pattern
        # The router sets these four; the defaults are for unknown paths.
        self.dialect: Dialect[object] = DEFAULT_DIALECT
        self.access: Access = "key"
        self.route_name: RouteName | None = None
        self.is_concurrent = False  # counts towards the concurrent requests of its key
        self.owner = ""  # whose data the request sees: a digest of the client's key, or of its name
        self.key_name = ""  # of the client's key, for logs; empty where no key is required
        self.is_admin = False  # it has an admin key, or needs none
        self.extra_headers: list[Header] = []  # sent with the response
        self.warnings: list[str] = []  # sent as headers; one sentence for each field without effect
        self.status: int | None = None  # of the response, once its headers are sent
        self.error_code: str | None = None  # of the error that was sent or broke the stream
        self.route = ""  # the pattern that matched, for metrics
        self.on_end: list[Callable[[], None]] = []  # called when the response is complete
        self.record = RequestRecord(request_id, self.method, self.path)
        self._reset_hooks()

    def _reset_hooks(self) -> None:
        # Middleware replaces these.
        self.get_rate_limits: Callable[[], RateLimitStatus | None] = _get_no_limits
        self.authorize: Authorize = _allow  # checks the key; counts a request inside the block
        self.report_error: Callable[[DragomanError], None] = _ignore_error  # to the audit log

    def break_cycles(self) -> None:
        """Remove the references that lead from the ended request back to itself.

        With them, what belongs to a request, such as its body, would stay in memory until the next
        garbage collection.
        """
        self._reset_hooks()
        self.on_end.clear()
        self.direct_writer = None
        for name in (REQUEST, DIRECT_REQUEST, DIRECT_WRITER):
            self.scope.pop(name, None)

    @property
    def response_headers(self) -> list[Header]:
        """Headers of every response to this request."""
        request_id = self.request_id.encode()
        ids = [(name, request_id) for name in self.dialect.request_id_headers]
        status = self.get_rate_limits()
        limits = [] if status is None else self.dialect.encode_rate_limits(status)
        warnings = make_warning_headers(self.warnings) if self.warnings else []
        return [*ids, *limits, *warnings, *self.extra_headers]

    def update_record(self) -> None:
        """Copy what is known about the request so far to its record."""
        record = self.record
        record.route, record.owner, record.api = self.route, self.owner, self.dialect.name
        record.key_name = self.key_name
        if self.warnings:
            record.warnings = tuple(dict.fromkeys((*self.warnings, *record.warnings)))

    def get_header_text(self, name: str) -> str | None:
        value = self.headers.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def refuse_compressed_body(self) -> None:
        """Raise `UnsupportedMedia` for a body that must be decoded before it is read."""
        for name, plain in PLAIN_ENCODINGS:
            if name in self.headers and (self.headers[name] or plain).strip().lower() != plain:
                raise UnsupportedMedia(f"Send the body without `{name.decode().title()}`.")

    @property
    def trace_headers(self) -> dict[str, str]:
        """The headers that say which trace of the client this request belongs to."""
        headers = self.headers
        if headers.keys().isdisjoint(TRACE_HEADERS):
            return {}
        present = [name for name in TRACE_HEADERS if name in headers]
        return {name.decode(): headers[name].decode("latin-1") for name in present}

    @cached_property
    def query(self) -> dict[str, str]:
        """The fields of the query string; of a repeated field, the last value."""
        text = self.scope.get("query_string", b"").decode("latin-1")
        try:
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS))
        except ValueError:
            raise BadRequest("The query string is malformed.") from None

    def take_body(self, limit: int) -> bytes | None:
        """Return the body if all of it has arrived already and it is no larger than the limit."""
        direct: DirectRequest | None = self.scope.get(DIRECT_REQUEST)
        return None if direct is None else direct.take_body(limit)

    async def read_body(
        self,
        limit: int,
        timeout: float,
        explanation: str = "",
        take_memory: Callable[[int], None] = lambda size: None,
    ) -> bytes:
        """Return the whole body, or an error if it is too large or too slow.

        The explanation is a sentence about the limit. `take_memory` is called with the size of
        what arrives, and raises an error if there is no room for it.
        """
        body = self.take_body(limit)
        if body is not None:
            take_memory(len(body))
        elif not self._announces_more_than(limit):
            body = await self._receive_body(limit, timeout, take_memory)
        if body is None:
            message = f"The request body is larger than the {limit:,} bytes allowed. {explanation}"
            raise TooLarge(message.rstrip())
        return body

    def _announces_more_than(self, limit: int) -> bool:
        """Whether the headers say that the body is larger than this."""
        length = self.headers.get(b"content-length")
        return length is not None and length.isdigit() and int(length) > limit

    async def receive_chunks(self, timeout: float) -> AsyncIterator[bytes]:
        """Yield a body of any size as it arrives; each `RENEWAL` bytes have the timeout."""
        received = 0
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        is_complete = False
        while not is_complete:
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self.receive()
            except TimeoutError:
                raise RequestTimeout("The request body did not arrive in time.") from None
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            received += len(chunk)
            if received >= RENEWAL:
                received, deadline = 0, loop.time() + timeout
            is_complete = not message.get("more_body", False)
            yield chunk

    async def _receive_body(
        self, limit: int, timeout: float, take_memory: Callable[[int], None]
    ) -> bytes | None:
        """Return the body once it has arrived, or None if it is larger than the limit."""
        try:
            async with asyncio.timeout(timeout):
                return await self._read_chunks(limit, take_memory)
        except TimeoutError:
            raise RequestTimeout("The request body did not arrive in time.") from None

    async def _read_chunks(self, limit: int, take_memory: Callable[[int], None]) -> bytes | None:
        """Return the body, or None if it is larger than the limit."""
        body = BytesIO()  # unlike a list of chunks, it needs no copy in the end
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            if body.tell() + len(chunk) > limit:
                return None
            take_memory(len(chunk))
            body.write(chunk)
            if not message.get("more_body", False):
                return body.getvalue()

    def watch_disconnect(self, on_disconnect: Callable[[], None]) -> Callable[[], object]:
        """Call a function when the client disconnects; return a function that stops watching.

        Use this only after the body was read.
        """
        direct: DirectRequest | None = self.scope.get(DIRECT_REQUEST)
        if direct is not None:
            return direct.watch_disconnect(on_disconnect)
        return watch_awaitable(self._wait_disconnected(), on_disconnect)

    async def _wait_disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def start_response(self, status: int, headers: Iterable[Header]) -> None:
        all_headers = [*headers, *self.response_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        self.status = status  # not earlier: if this is interrupted, an error can still be sent

    def start_directly(self, writer: DirectWriter, status: int, headers: Iterable[Header]) -> bool:
        """Like `start_response`, at once; False if only that can send the headers."""
        has_body = self.method != "HEAD"
        if not has_body or not writer.start(status, (*headers, *self.response_headers)):
            return False
        self.status = status
        return True

    async def _send(self, message: Message) -> None:
        """Send a part of an HTTP response, also in answer to a WebSocket handshake."""
        if self.is_websocket:
            if _REJECT_EXTENSION in (self.scope.get("extensions") or {}):
                message = {**message, "type": f"websocket.{message['type']}"}
            elif message["type"] == "http.response.start":  # the only way left to reject
                message = {"type": "websocket.close", "code": CloseCode.POLICY_VIOLATION}
            else:
                return
        try:
            await self.send(message)
        except OSError:  # raised by servers when the client has disconnected
            raise Disconnected from None

    async def send_response(
        self,
        status: int,
        body: bytes,
        content_type: bytes = JSON,
        headers: Iterable[Header] = (),
    ) -> None:
        length = str(len(body)).encode()
        own = [(b"content-type", content_type), (b"content-length", length)]
        content = b"" if self.method == "HEAD" else body
        with self.collect_writes():
            await self.start_response(status, [*own, *headers])
            await self._send({"type": "http.response.body", "body": content})

    async def send_chunks(
        self, chunks: AsyncIterator[bytes], length: int, headers: Iterable[Header]
    ) -> None:
        """Send a body of a known length piece by piece, as fast as the client reads it."""
        own = [(b"content-length", str(length).encode())]
        await self.start_response(200, [*own, *headers])
        # The last chunk is sent with the end of the response: a client that has the whole body may
        # send its next request.
        last = b""
        if self.method != "HEAD":
            async for chunk in chunks:
                await self._send({"type": "http.response.body", "body": last, "more_body": True})
                last = chunk
        await self._send({"type": "http.response.body", "body": last})

    def collect_writes(self) -> AbstractContextManager[None]:
        """Have our own server write what is sent inside this block in one system call, at its end.

        Other servers write each part by itself.
        """
        return self.direct_writer or SEPARATE_WRITES

    def hold_writes(self) -> AbstractContextManager[None]:
        """Like `collect_writes`, but what was sent may wait a moment for what is sent next."""
        writer = self.direct_writer
        return SEPARATE_WRITES if writer is None else HeldWrites(writer)


def make_request_id() -> str:
    return f"req_{urandom(16).hex()}"


def make_warning_headers(warnings: Collection[str]) -> list[Header]:
    """Return a header for each warning."""
    if not warnings:
        return []
    unique = dict.fromkeys(warnings)
    texts = (_UNPRINTABLE.sub("?", text)[:MAX_WARNING_LENGTH].strip() for text in unique)
    return [(b"x-dragoman-warning", text.encode()) for text in islice(texts, MAX_WARNINGS)]
