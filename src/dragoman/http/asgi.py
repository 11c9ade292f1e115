"""The few names of ASGI, and one request as the handlers see it.

An `Exchange` is one HTTP request and its answer. It reads the body within its limits, sends a whole
body or a stream, and remembers what was sent, so that the layers around it need not wrap `send` and
cost nothing per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from dragoman.errors import DragomanError, RequestTimeout, TooLarge
from dragoman.http.watching import Disconnected
from dragoman.protocols import openai

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]

JSON = b"application/json"
WRITER = "dragoman.writer"  # where our own connections put their direct way to the client
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.request_id = request_id
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        self.params: dict[str, str] = {}
        self.headers: list[Header] = [(b"x-request-id", request_id.encode())]
        self.status: int | None = None  # of the answer, once its headers are out
        self.code: str | None = None  # of the error that was answered or broke the stream
        self.route = ""  # the pattern that matched, for metrics
        self.write_error: Callable[[DragomanError], bytes] = (
            openai.error
        )  # a dialect with errors of its own puts them here

    def header(self, name: bytes) -> bytes | None:
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    async def body(self, limit: int, timeout: float) -> bytes:
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

    async def gone(self) -> None:
        """Return when the client has disconnected. Only after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.status = status
        every = [*headers, *self.headers]
        await self.send({"type": "http.response.start", "status": status, "headers": every})

    async def answer(
        self, status: int, body: bytes, kind: bytes = JSON, headers: Iterable[Header] = ()
    ) -> None:
        length = str(len(body)).encode()
        await self.start(status, [(b"content-type", kind), (b"content-length", length), *headers])
        shown = b"" if self.method == "HEAD" else body
        await self.send({"type": "http.response.body", "body": shown})


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request's body is larger than the {limit:,} bytes allowed.")
