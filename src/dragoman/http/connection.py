"""One TCP connection, guarded: what must be bounded before there is a request to speak of.

The HTTP parser takes headers of any size and waits for ever. This bounds both: headers past the
limit end with 431, a request that does not arrive in time with 408, and what is not HTTP with 400,
each as the JSON error object, and the connection is closed.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.errors import BadRequest, DragomanError, HeadersTooLarge, RequestTimeout
from dragoman.http.asgi import WRITER
from dragoman.protocols import openai

MOST_FIELDS = 100


class Writer:
    """Writes chunks of a started, chunked answer straight to the transport.

    What it saves of the way through `send` is most of what a token costs. It never waits: while
    `ready` is False the way through `send`, which does, must be taken.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def ready(self) -> bool:
        cycle = self._cycle
        return not (self._flow.write_paused or cycle.disconnected) and bool(cycle.chunked_encoding)

    def write(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


class Connection(HttpToolsProtocol):
    """A connection with limits."""

    header_limit: ClassVar[int] = 64 * 1024
    receive_timeout: ClassVar[float] = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_headers = False
        self._size = 0  # bytes that came while headers were read
        self._fields = 0  # bytes of the fields that are whole
        self._refusal: DragomanError | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_headers = True
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        counting = self._in_headers
        super().data_received(data)
        if counting and self._in_headers:
            self._size += len(data)
            if self._size > self.header_limit and not self.transport.is_closing():
                self._refuse(HeadersTooLarge("The request's headers are too large."))

    def on_message_begin(self) -> None:
        self._in_headers = True
        self._size = self._fields = 0
        self._arm()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._fields += len(name) + len(value) + 4
        if len(self.headers) > MOST_FIELDS or self._fields > self.header_limit:
            self._refusal = HeadersTooLarge("The request's headers are too large.")
            raise self._refusal

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()
        self.scope[WRITER] = Writer(self.cycle)  # type: ignore[literal-required]

    def on_message_complete(self) -> None:
        self._disarm()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called when the parser gives up, also because a callback above did."""
        self._refuse(self._refusal or BadRequest("This is not valid HTTP.", code="bad_http"))

    def _refuse(self, error: DragomanError) -> None:
        self._disarm()
        body = openai.error(error)
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.receive_timeout, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self._in_headers and self._size:
            self._refuse(RequestTimeout("The request did not arrive in time."))
        elif self._in_headers or self.cycle.response_complete:
            self.transport.close()
        else:  # the app reads the body under a deadline of its own; look again after it
            self._arm()


def guarded(header_limit: int, receive_timeout: float) -> type[Connection]:
    """The protocol class for a server with these limits."""
    limits = {"header_limit": header_limit, "receive_timeout": receive_timeout}
    return type("GuardedConnection", (Connection,), limits)
