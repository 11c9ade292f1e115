"""One TCP connection, guarded: what must be bounded before there is a request to speak of.

The HTTP parser takes headers of any size and waits for ever; this bounds both. Headers past the
limit end with 431, a request that does not arrive in time with 408, what is not HTTP with 400, each
as the JSON error object, and the connection is closed. Requests are answered one at a time: bytes
that come while one is answered are not read ahead, the connection is closed after that answer, and
the client's leaving is noticed meanwhile. A request for a WebSocket, at a path that has one, hands
the connection over to `upgraded`; any other offer to upgrade is declined and the request answered
as it is. A client that takes nothing of what was written for too long is dropped.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.config import Settings
from dragoman.errors import BadRequest, DragomanError, HeadersTooLarge, RequestTimeout
from dragoman.http.asgi import DIRECT_WRITER, Scope
from dragoman.http.closing import LingeringClose, StallTimer
from dragoman.http.router import Router
from dragoman.http.websocket_connection import WebSocketConnection, parse_handshake
from dragoman.protocols.shared import openai

MOST_FIELDS = 100
HOP = (b"upgrade", b"connection", b"http2-settings")


class DirectWriter:
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


class CycleTransport(asyncio.Transport):
    """What uvicorn's response cycle sees of the transport: its `close` is the connection's own."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.is_closing

    def close(self) -> None:
        self._connection.close()


class Connection(HttpToolsProtocol):
    """A connection with limits."""

    settings: ClassVar[Settings] = Settings()
    routes: ClassVar[Router] = Router([])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: Literal["idle", "headers", "body"] = "headers"
        self._ahead = False  # a further request came before its turn
        self._declined = False  # an offer to upgrade
        self._size = 0  # bytes that came without any of a body among them
        self._fields = 0  # bytes of header fields that are whole
        self._taken = 0  # bytes of a body in what just came
        self._refusal: DragomanError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._handed_over = False
        self._ignored_data = False  # bytes came while a response was under way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stall = StallTimer(transport, self.settings.stall)
        self._lingering = LingeringClose(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._stall.stop()
        self._lingering.stop()
        super().connection_lost(exc)
        if self.cycle is not None:  # it and we would keep each other alive
            self.cycle.transport = self.transport

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_active:
            self._lingering.discard(data)
            return
        self._unset_keepalive_if_required()
        if self._answering:
            self._ignored_data = True
            self.cycle.keep_alive = False
            return
        self._taken = 0
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or BadRequest("This is not valid HTTP.", code="bad_http"))
            return
        if not self._handed_over:
            self._bound(len(data))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method = self.parser.get_method()
            if self._declined or method == b"CONNECT":
                raise httptools.HttpParserError from None
            if self._hand_over(method, data[offer.args[0] :]):
                return
            self._declined = True
            head = [method, b" ", self.url, b" HTTP/1.1\r\n"]
            for name, value in self.headers:
                if name not in HOP:
                    head += [name, b": ", value, b"\r\n"]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"".join([*head, b"\r\n", data[offer.args[0] :]]))

    def _hand_over(self, method: bytes, rest: bytes) -> bool:
        """Let the connection become a WebSocket, if that is what the client asks for here."""
        names = dict(self.headers)
        body = names.get(b"transfer-encoding") or names.get(b"content-length", b"0") != b"0"
        proper = method == b"GET" and self.parser.get_http_version() == "1.1" and not body
        if self._ahead or self._answering or not proper:
            return False
        url = httptools.parse_url(self.url)
        path = unquote((url.path or b"").decode("latin-1"))
        asked = parse_handshake(self.headers, self.settings.body_limit)
        if asked is None or not self.routes.has_websocket(path):
            return False
        scope: Scope = {
            **self.scope,
            "type": "websocket",
            "asgi": {"version": self.asgi_version, "spec_version": "2.4"},
            "scheme": "wss" if self.scheme == "https" else "ws",
            "path": self.root_path + path,
            "raw_path": self.root_path.encode() + url.path,
            "query_string": url.query or b"",
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        self._handed_over = True
        self._disarm()
        self._stall.stop()
        self.connections.discard(self)
        self.parser = None  # type: ignore[assignment]  # it and we would keep each other alive
        WebSocketConnection(self, *asked, scope).begin(rest)
        return True

    def _bound(self, size: int) -> None:
        """Count what came: only a body may be large, and its reader bounds it."""
        self._size = 0 if self._taken else self._size + size
        if self._phase == "idle":
            self._size = 0
            if not self._answering and self._deadline is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._size > self.settings.header_limit:
            self._refuse(HeadersTooLarge("The request's headers are too large."))

    @property
    def _answering(self) -> bool:
        """Whether a request has arrived whole and its answer has not gone out whole."""
        cycle = self.cycle
        return self._phase == "idle" and cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        if self._answering:
            self._ahead = True
            self.cycle.keep_alive = False
            return
        self._phase = "headers"
        self._size = self._fields = 0
        self._arm()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._ahead:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._ahead:
            return
        super().on_header(name, value)
        self._fields += len(name) + len(value) + 4
        if len(self.headers) > MOST_FIELDS or self._fields > self.settings.header_limit:
            self._refusal = HeadersTooLarge("The request's headers are too large.")
            raise self._refusal

    def on_headers_complete(self) -> None:
        if self._ahead or self.parser.should_upgrade():
            return
        self._phase = "body"
        self._declined = False
        super().on_headers_complete()
        self.scope[DIRECT_WRITER] = DirectWriter(self.cycle)  # type: ignore[literal-required]
        self.cycle.transport = CycleTransport(self)

    def on_body(self, body: bytes) -> None:
        if not self._ahead:
            self._taken += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ahead or self._phase != "body":
            return
        self._phase = "idle"
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._lingering.is_active:
            self._unset_keepalive_if_required()
        self._stall.restart()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.restart()

    def resume_writing(self) -> None:
        self._stall.on_buffer_drained(more_follows=self._answering)
        super().resume_writing()

    def close(self) -> None:
        """Close the connection; the client can read the last response first.

        Where the request was read whole there is nothing to wait for.
        """
        if self._phase == "idle" and not (self._ahead or self._ignored_data):
            self.transport.close()
        else:
            self._disarm()
            self._lingering.start()

    @property
    def is_closing(self) -> bool:
        return self._lingering.is_active or self.transport.is_closing()

    def shutdown(self) -> None:
        if self._lingering.is_active:
            self.transport.close()
        else:
            super().shutdown()

    def _refuse(self, error: DragomanError) -> None:
        """Answer with an error, unless an answer is under way, and close."""
        self._disarm()
        if self.is_closing:
            return
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = openai.encode_error(error)
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        if cycle is not None and not cycle.response_complete:  # the app must write no more
            cycle.disconnected = True
            cycle.message_event.set()
        self._lingering.start()
        self._stall.restart()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(self.settings.receive_timeout, self._late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        if self._phase == "headers" and self._size:
            self._refuse(RequestTimeout("The request did not arrive in time."))
        elif self._phase == "headers" or self.cycle.response_complete:
            self.close()
        else:  # the app reads the body under a deadline of its own; look again after it
            self._arm()


def make_connection_class(settings: Settings, routes: Router) -> type[Connection]:
    """The protocol class for a server with these limits and routes."""
    return type("GuardedConnection", (Connection,), {"settings": settings, "routes": routes})
