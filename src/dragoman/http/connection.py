"""One TCP connection, with the limits that apply before there is a request.

The HTTP parser takes headers of any size and waits forever; this bounds both. Headers over the
limit get 431, a request that does not arrive in time 408, invalid HTTP 400, each with the error
object of the path's wire API, and the connection is closed so that the client can read it, see
`closing`.

Requests are served one at a time: bytes that arrive during a response are not parsed, the
connection is closed after that response, and a disconnect is noticed meanwhile. A WebSocket
handshake at a path that has a WebSocket hands the connection over to `websocket_connection`; any
other upgrade offer is declined and the request served as it is. A client that does not read what
was written for too long is dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dragoman.config import Settings
from dragoman.errors import DragomanError, HeadersTooLarge, InvalidHttp, RequestTimeout
from dragoman.http.asgi import DIRECT_REQUEST, DIRECT_WRITER, HEALTH_ONLY, Scope
from dragoman.http.body import BodyLimit
from dragoman.http.closing import LingeringClose, StallTimer, encode_rejection
from dragoman.http.network.direct_request import DirectRequest
from dragoman.http.network.half_close import HalfClose
from dragoman.http.network.request_target import convert_target, set_target
from dragoman.http.network.response_transport import (
    CycleTransport,
    DirectWriter,
    end_with_connection,
    make_cycle,
)
from dragoman.http.router import Router
from dragoman.http.websocket_connection import WebSocketConnection, parse_handshake
from dragoman.telemetry.access_log import log_rejection

MAX_HEADERS = 100
TIMER_TOLERANCE = 0.005  # seconds by which a timer may be early
UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")


class Connection(HttpToolsProtocol):
    """uvicorn's protocol of an HTTP connection, with limits; `_phase` is that of the request."""

    settings: ClassVar[Settings] = Settings()
    router: ClassVar[Router] = Router([])
    body_limit: ClassVar[BodyLimit] = BodyLimit(Settings(), tuple)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase: Literal["idle", "headers", "body"] = "headers"
        self._pipelined = False  # a further request began before the response was complete
        self._ignored_data = False  # bytes arrived during a response
        self._upgrade_declined = False
        self._upgraded = False
        self._header_bytes = 0  # received since the last byte of a body
        self._field_bytes = 0  # of complete header fields
        self._body_bytes = 0  # in the data received last
        self._rejection: DragomanError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._late_at = 0.0  # when the request should have arrived completely
        self._wants_keep_alive = False
        self._half_close: HalfClose | None = None
        self._direct: DirectRequest | None = None  # the last request
        self.health_only = False  # all other requests are refused
        self._is_retiring = False
        self.idle_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._stall = StallTimer(transport, self.settings.stall)
        self._lingering = LingeringClose(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_deadline()
        self._stall.stop()
        self._lingering.stop()
        if self._half_close is not None:
            self._half_close.stop()
            self._half_close = None  # break the reference cycle
        super().connection_lost(exc)
        self._report_disconnect()
        if self.cycle is not None:  # break the reference cycle through `CycleTransport`
            self.cycle.transport = self.transport

    def _report_disconnect(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.report_disconnect()

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_active:
            self._lingering.discard(data)
            return
        self._unset_keepalive_if_required()
        if self._is_responding():
            self._ignore_rest()
            return
        self._body_bytes = 0
        try:
            self._feed(data)
        except httptools.HttpParserError:
            if self._is_responding():  # the request is complete; what follows it is invalid
                self._ignore_rest()
            else:
                self._reject(self._rejection or InvalidHttp("Invalid HTTP request."))
            return
        if not self._upgraded:
            self._count_bytes(len(data))
            if self._phase != "idle" and self._deadline is None and not self.is_closing:
                self._deadline = self.loop.call_at(self._late_at, self._on_deadline)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. Return whether it may still read the response."""
        has_half_close = self.transport.can_write_eof()  # not with TLS
        if not has_half_close or self._lingering.is_active or not self._is_responding():
            return False
        self.cycle.keep_alive = False
        self._half_close = HalfClose(self.transport, self._write_probe)
        return True

    def _write_probe(self) -> None:
        transport = self.cycle.transport
        if isinstance(transport, CycleTransport):
            transport.write_probe(self.cycle)

    def _ignore_rest(self) -> None:
        """Close the connection after the response, whatever the client sends meanwhile."""
        self._ignored_data = True
        self.cycle.keep_alive = False

    def _feed(self, data: bytes) -> None:
        """Parse data; a request whose upgrade is declined is parsed again as a plain one."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method = self.parser.get_method()
            if self._upgrade_declined or method == b"CONNECT":
                raise httptools.HttpParserError from None
            rest = data[offer.args[0] :]
            if self._upgrade(method, rest):
                return
            self._upgrade_declined = True
            head = [method, b" ", self.url, b" HTTP/1.1\r\n"]
            for name, value in self.headers:
                if name not in UPGRADE_HEADERS:
                    head += [name, b": ", value, b"\r\n"]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"".join([*head, b"\r\n", rest]))

    def _upgrade(self, method: bytes, rest: bytes) -> bool:
        """Turn the connection into a WebSocket if the client asks for one and the path has one."""
        headers = dict(self.headers)
        has_body = headers.get(b"transfer-encoding") or headers.get(b"content-length", b"0") != b"0"
        is_plain_get = method == b"GET" and self.parser.get_http_version() == "1.1" and not has_body
        if self._pipelined or self._is_responding() or not is_plain_get:
            return False
        url = httptools.parse_url(self.url)
        path = self._read_path()
        handshake = parse_handshake(self.headers, self.body_limit.get())
        if handshake is None or not self.router.has_websocket(path):
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
        self._upgraded = True
        self._stop_deadline()
        self._stall.stop()
        self.connections.discard(self)
        self.parser = None  # type: ignore[assignment]  # break the reference cycle
        budget = self.body_limit.budget
        WebSocketConnection(self, self.settings, handshake, scope, budget).begin(rest)
        return True

    def _count_bytes(self, size: int) -> None:
        """Count received bytes; reject headers over the limit. The reader of a body limits that."""
        self._header_bytes = 0 if self._body_bytes else self._header_bytes + size
        if self._phase == "idle":
            self._header_bytes = 0
            if not self._is_responding() and self._deadline is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._header_bytes > self.settings.header_limit:
            self._reject(_make_headers_error())

    def _is_responding(self) -> bool:
        """Whether a request has arrived completely and its response is not complete yet."""
        cycle = self.cycle
        return self._phase == "idle" and cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        if self._is_responding():
            self._pipelined = True
            self.cycle.keep_alive = False
            return
        self._phase = "headers"
        self._header_bytes = self._field_bytes = 0
        # a timer is started only if the request does not arrive completely with its beginning
        if self._deadline is not None:
            self._stop_deadline()
        self._late_at = self.loop.time() + self.settings.receive_timeout
        super().on_message_begin()
        if self.health_only:
            self.scope[HEALTH_ONLY] = True  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        if not self._pipelined:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._pipelined:
            return
        name = name.lower()
        if self._phase == "body":
            pass  # what follows a chunked body is no header
        elif name == b"expect":
            super().on_header(name, value)
        else:
            self.headers.append((name, value))
        self._field_bytes += len(name) + len(value) + 4
        if len(self.headers) > MAX_HEADERS or self._field_bytes > self.settings.header_limit:
            self._rejection = _make_headers_error()
            raise self._rejection

    def on_headers_complete(self) -> None:
        if self._pipelined:
            return
        version = self.parser.get_http_version()
        self.url = convert_target(self.url, self.headers, version)
        if self.parser.should_upgrade():
            return
        self._phase = "body"
        self._upgrade_declined = False
        scope: Scope = self.scope  # type: ignore[assignment]
        scope["method"], scope["http_version"] = self.parser.get_method().decode("ascii"), version
        set_target(scope, self.url, self.root_path)
        transport = CycleTransport(self.transport, self)
        cycle = self.cycle = make_cycle(self, transport)
        self._direct = DirectRequest(cycle)
        scope[DIRECT_REQUEST] = self._direct
        scope[DIRECT_WRITER] = DirectWriter(cycle, transport)
        self._wants_keep_alive = version != "1.0" and self.parser.should_keep_alive()
        if version == "1.0":
            end_with_connection(cycle)
        self._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        if self._pipelined:
            return
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete:  # the app did not read the body and never will
            self._lingering.discard(body)

    def on_message_complete(self) -> None:
        if self._pipelined or self._phase != "body":
            return
        self._phase = "idle"
        if self._deadline is not None:
            self._stop_deadline()
        if not (self.cycle.response_started or self.health_only or self._is_retiring):
            self.cycle.keep_alive = self._wants_keep_alive
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since = self.loop.time()
        if self._lingering.is_active:
            self._unset_keepalive_if_required()
        self._stall.restart()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.restart()

    def resume_writing(self) -> None:
        self._stall.on_buffer_drained(more_follows=self._is_responding())
        super().resume_writing()

    def close(self) -> None:
        """Close the connection, in a way that lets the client read the last response.

        If the request was read completely, there is nothing to wait for. Nor is there if it did
        not arrive in time: a slow client must not decide how long the connection stays open.
        """
        is_complete = self._phase == "idle" and not (self._pipelined or self._ignored_data)
        if is_complete or self._is_late():
            self._stop_deadline()
            self.transport.close()
        else:
            self._stop_deadline()
            self._lingering.start()

    @property
    def is_closing(self) -> bool:
        return self._lingering.is_active or self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no request has arrived completely, or its response is complete."""
        return not (self._is_responding() or self._upgraded or self._phase == "body")

    def retire(self) -> None:
        """Serve one more request at most, so that clients connect to the new process."""
        self._is_retiring = True
        if self._is_responding() and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        if self._lingering.is_active:
            self.transport.close()
        else:
            super().shutdown()

    def _reject(self, error: DragomanError) -> None:
        """Send an error, unless a response was started, and close."""
        self._stop_deadline()
        if self.is_closing:
            return
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            dialect = self.router.find_dialect(self._read_path())
            self.transport.write(encode_rejection(error, dialect))
            log_rejection(error)
        if cycle is not None and not cycle.response_complete:  # the app must stop writing
            cycle.disconnected = True
            cycle.message_event.set()
            self._report_disconnect()
        if self._is_late():
            self.transport.close()
        else:
            self._lingering.start()
        self._stall.restart()

    def _read_path(self) -> str:
        """Return the path of the request, or what has arrived of it."""
        try:
            path = httptools.parse_url(self.url).path
        except (AttributeError, httptools.HttpParserError):  # no request line, or a malformed one
            return ""
        return unquote((path or b"").decode("latin-1"))

    def _start_deadline(self) -> None:
        self._stop_deadline()
        self._late_at = self.loop.time() + self.settings.receive_timeout
        self._deadline = self.loop.call_at(self._late_at, self._on_deadline)

    def _is_late(self) -> bool:
        return self._phase != "idle" and self.loop.time() >= self._late_at - TIMER_TOLERANCE

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        self._deadline = None
        if self._phase == "headers" and self._header_bytes:
            self._reject(RequestTimeout("The request did not arrive in time."))
        elif self._phase == "headers" or self.cycle.response_complete:
            self.close()
        else:  # the app reads the body with its own deadline; check again after that
            late_at = self._late_at
            self._start_deadline()
            self._late_at = late_at


def _make_headers_error() -> HeadersTooLarge:
    return HeadersTooLarge("The request headers are too large.")


def make_connection_class(
    settings: Settings, router: Router, body_limit: BodyLimit
) -> type[Connection]:
    """Return the protocol class of a server with these limits and routes."""
    attributes = {"settings": settings, "router": router, "body_limit": body_limit}
    return type("ServerConnection", (Connection,), attributes)
