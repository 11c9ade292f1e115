"""One TCP connection that has become a WebSocket, with limits.

`websockets` implements the protocol; this bounds what it leaves unbounded. The connection ends if a
message is too large or does not arrive in time, if the client does not read what was written, or if
it does not answer pings. While the app has not asked for the messages received, no more are read.
Frames may be tiny, and each takes as long to parse as a large one, so many of them are parsed in
turns.
Compression is off, so that a small message cannot expand into a large one. The app sees plain ASGI,
and until it accepts, it can reject the handshake with a full HTTP response.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from dragoman.config import Settings
from dragoman.errors import OutOfMemory
from dragoman.http.asgi import DIRECT_WRITER, Header, Message, Scope
from dragoman.http.closing import PHRASES, LingeringClose, StallTimer
from dragoman.http.network.body_budget import BodyBudget

log = logging.getLogger("dragoman.http")
library_log = logging.getLogger("dragoman.websocket")  # the library logs every connection
library_log.setLevel(logging.ERROR)
CLOSE_TIMEOUT = 5.0  # seconds for the client to answer a close frame
MAX_UNREAD = 1024 * 1024  # bytes that the client has not read; beyond, nothing is read from it
SLICE = 1024  # bytes that are parsed at once: up to 500 frames
TURN = 0.005  # seconds of parsing, after which others get their turn
HANDSHAKE_HEADERS = (b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")
Handshake: TypeAlias = tuple[ServerProtocol, Response]


def parse_handshake(headers: Iterable[Header], message_limit: int) -> Handshake | None:
    """Return the protocol and the response that accepts it, if the handshake is valid."""
    protocol = ServerProtocol(extensions=None, max_size=message_limit, logger=library_log)
    lines = [name + b": " + value + b"\r\n" for name, value in headers if name in HANDSHAKE_HEADERS]
    protocol.receive_data(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
    events = protocol.events_received()
    if not events or not isinstance(events[0], Request):
        return None
    response = protocol.accept(events[0])
    return (protocol, response) if response.status_code == 101 else None


class WebSocketConnection(asyncio.Protocol):
    """Frames on one side, ASGI on the other."""

    def __init__(
        self,
        connection: HttpToolsProtocol,
        settings: Settings,
        handshake: Handshake,
        scope: Scope,
        budget: BodyBudget,
    ) -> None:
        self._app: Callable[..., Awaitable[Any]] = connection.app
        self._loop = connection.loop
        self._state = connection.server_state
        self.idle_since = self._loop.time()
        self.transport = connection.transport
        self._protocol, self._response = handshake
        self._scope = scope
        self._receive_timeout = settings.receive_timeout
        self._ping_interval = settings.ping
        self._pong_timeout = settings.stall
        self._stall = StallTimer(self.transport, settings.stall)
        self._lingering = LingeringClose(self.transport)
        self._writable = asyncio.Event()
        if not connection.flow.write_paused:
            self._writable.set()
        self._early_data = b""  # received before the handshake was answered
        self._unparsed = bytearray()
        self._next_turn: asyncio.Handle | None = None  # in which the rest is parsed
        self._fragments = bytearray()  # of a message in several frames
        self._is_binary = False  # the message being received
        self._hold = budget.open_hold()  # of what the app has not received yet
        self._received: deque[Message] = deque([{"type": "websocket.connect"}])
        self._received_bytes = 0  # of their texts
        self._wakeup = asyncio.Event()
        self._reading = False
        self._last_received = 0.0
        self._rejection: Message = {}
        self._answered = False  # the handshake is accepted or rejected
        self._close_code: int | None = None  # set once the connection is over for the app
        self._message_deadline: asyncio.TimerHandle | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def begin(self, rest: bytes) -> None:
        """Take over the connection, with the bytes that followed the handshake."""
        self.transport.pause_reading()
        self._early_data = rest
        self.transport.set_protocol(self)
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._scope[DIRECT_WRITER] = self
        task = self._loop.create_task(self._run())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _run(self) -> None:
        try:
            await self._app(self._scope, self.receive, self.send)
        except Exception:
            log.exception("the app failed")
        finally:
            self._scope = {}
            if not self._answered:
                self._reject(500, [], b"")
            self._close(CloseCode.INTERNAL_ERROR, "")

    # The ASGI side, called by the app

    async def receive(self) -> Message:
        while not self._received:
            if self._close_code is not None:
                return {"type": "websocket.disconnect", "code": self._close_code, "reason": ""}
            self._wakeup.clear()
            await self._wakeup.wait()
        message = self._received.popleft()
        self._received_bytes -= len(message.get("text") or "")
        self._update_reading()
        self._update_hold()
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.send":
            await self._writable.wait()
            if not self._is_open:
                raise BrokenPipeError
            self.write(message["text"].encode())
        elif kind == "websocket.accept":
            self._accept(message.get("headers", ()))
        elif kind == "websocket.close" and self._answered:
            self._close(message.get("code", CloseCode.NORMAL_CLOSURE), message.get("reason") or "")
        elif kind == "websocket.close":
            self._reject(403, [], b"")
        elif kind == "websocket.http.response.start":
            self._rejection = message
        elif kind == "websocket.http.response.body":
            start = self._rejection
            self._reject(start["status"], start["headers"], message.get("body", b""))

    @property
    def is_ready(self) -> bool:
        """Whether `write` can be called: the connection is open and the client reads."""
        return self._is_open and self._writable.is_set()

    @property
    def _is_open(self) -> bool:
        return self._answered and self._close_code is None and not self.transport.is_closing()

    def set_owner(self, owner: str) -> None:
        """Count what is received as bodies of this owner; before anything is."""
        self._hold.set_owner(owner)

    def write(self, data: bytes) -> None:
        self._protocol.send_text(data)
        self._flush()

    def _accept(self, headers: Iterable[Header]) -> None:
        if self.transport.is_closing():
            raise BrokenPipeError
        self._answered = True
        response_headers = self._response.headers
        for name, value in headers:
            response_headers[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_response(self._response)
        self._flush()
        self._ping_timer = self._loop.call_later(self._ping_interval, self._on_ping_timer)
        early_data, self._early_data = self._early_data, b""
        if early_data:
            self.data_received(early_data)
        self._update_reading()

    def _reject(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        self._answered = True
        self._end(CloseCode.ABNORMAL_CLOSURE)
        if self.transport.is_closing():
            return
        phrase = PHRASES.get(status, "")
        fields = Headers(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers
        )
        fields["connection"] = "close"
        self.transport.write(Response(status, phrase, fields, body).serialize())
        self._lingering.start()
        self._stall.restart()

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame and wait a moment for the client's."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self._end(code)
            self._flush()
            self._stall.restart()
            self._close_timer = self._loop.call_later(CLOSE_TIMEOUT, self.transport.close)

    def _end(self, code: int) -> None:
        """The app receives nothing more."""
        if self._close_code is None:
            self._close_code = code
        self._received.clear()
        self._received_bytes = 0
        self._fragments.clear()
        self._hold.release()
        self._wakeup.set()
        self._writable.set()
        for timer in (self._ping_timer, self._message_deadline):
            if timer is not None:
                timer.cancel()
        self._ping_timer = self._message_deadline = None

    # The protocol side, called by the event loop

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_active:
            self._lingering.discard(data)
            return
        if not self._answered:  # a read was under way when reading was paused
            self._early_data += data
            return
        self._last_received = self._loop.time()
        self._unparsed += data
        if self._next_turn is None:
            self._parse()

    def _parse(self) -> None:
        """Parse what was received. If that takes too long, go on after others had their turn."""
        self._next_turn = None
        size, ends_at = 0, time.perf_counter() + TURN
        while size < len(self._unparsed) and time.perf_counter() < ends_at:
            self._parse_slice(bytes(self._unparsed[size : size + SLICE]))
            size += SLICE
        del self._unparsed[:size]
        self._update_hold()
        self._flush()
        if self._lingering.is_active or self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            self._next_turn = self._loop.call_soon(self._parse)
        self._update_reading()

    def _parse_slice(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._on_frame(event)
        failure = self._protocol.close_sent if self._protocol.parser_exc is not None else None
        if failure is not None:
            self._end(failure.code)

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            close = self._protocol.close_rcvd
            self._end(CloseCode.ABNORMAL_CLOSURE if close is None else close.code)
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and self._close_code is None:
            if frame.opcode is not Opcode.CONT:
                self._is_binary = frame.opcode is Opcode.BINARY
            self._fragments += frame.data
            if frame.fin:
                self._on_message()

    def _on_message(self) -> None:
        data, self._fragments = self._fragments, bytearray()
        self._stop_message_deadline()
        message: Message = {"type": "websocket.receive"}
        try:
            message["text"] = None if self._is_binary else data.decode()
        except UnicodeDecodeError:
            self._fail(CloseCode.INVALID_DATA, "The message is not valid UTF-8.")
            return
        message["bytes"] = bytes(data) if self._is_binary else None
        self._received.append(message)
        self._received_bytes += len(message["text"] or "")
        self._wakeup.set()

    def _update_hold(self) -> None:
        """Count what was received of messages; close if all connections together have too much."""
        if self._close_code is not None:
            return
        partial = len(self._fragments) + len(self._protocol.reader.buffer) + len(self._unparsed)
        try:
            self._hold.resize(self._received_bytes + partial)
        except OutOfMemory as error:
            self._fail(CloseCode.TRY_AGAIN_LATER, error.message)

    def _update_reading(self) -> None:
        """Read while the app wants more and the client reads what was written."""
        if self.transport.is_closing():
            return
        is_over = self._close_code is not None
        too_much_unread = self.transport.get_write_buffer_size() > MAX_UNREAD
        is_wanted = self._answered and not self._received and not too_much_unread
        should_read = (is_over or is_wanted) and not self._unparsed
        if should_read and not self._reading:
            self._last_received = self._loop.time()
            self.transport.resume_reading()
        elif self._reading and not should_read:
            self.transport.pause_reading()
        self._reading = should_read
        protocol = self._protocol
        is_partial = protocol.current_size is not None or len(protocol.reader.buffer) > 0
        if not is_partial or is_over or not (should_read or self._unparsed):
            self._stop_message_deadline()
        elif self._message_deadline is None:
            self._message_deadline = self._loop.call_later(
                self._receive_timeout, self._on_message_late
            )

    def _on_message_late(self) -> None:
        """Close at once: a slow client must not decide how long the connection stays open."""
        self._fail(CloseCode.POLICY_VIOLATION, "The message did not arrive in time.")
        self.transport.close()

    def _stop_message_deadline(self) -> None:
        if self._message_deadline is not None:
            self._message_deadline.cancel()
            self._message_deadline = None

    def _fail(self, code: int, reason: str) -> None:
        self._protocol.fail(code, reason)
        self._end(code)
        self._flush()

    def _flush(self) -> None:
        parts = self._protocol.data_to_send()
        if self.transport.is_closing():
            return
        if data := b"".join(parts):
            self.transport.write(data)
        if b"" in parts:  # how the library signals the end
            if self._protocol.close_rcvd is None:  # the client may still be sending
                self._lingering.start()
            else:
                self.transport.close()
            self._stall.restart()

    def _on_ping_timer(self) -> None:
        """Send a ping, or drop the client if nothing was received for too long."""
        silence = self._loop.time() - self._last_received
        if self._reading and silence > self._ping_interval + self._pong_timeout:
            self.transport.abort()
            return
        if self._writable.is_set():
            self._protocol.send_ping(b"")
            self._flush()
        self._ping_timer = self._loop.call_later(self._ping_interval, self._on_ping_timer)

    def pause_writing(self) -> None:
        if self._close_code is None:
            self._writable.clear()
        self._stall.restart()

    def resume_writing(self) -> None:
        self._stall.on_buffer_drained(more_follows=self._close_code is None)
        self._writable.set()
        self._update_reading()

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._end(CloseCode.ABNORMAL_CLOSURE)
        self._unparsed.clear()
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._stall.stop()
        self._lingering.stop()
        if self._close_timer is not None:
            self._close_timer.cancel()

    @property
    def is_idle(self) -> bool:
        """Never: its session decides how long it may be silent."""
        return False

    def retire(self) -> None:
        """Nothing to do here: the session closes the WebSocket when it is idle."""

    def shutdown(self) -> None:
        """The server stops: close without waiting."""
        self._close(CloseCode.SERVICE_RESTART, "")
        self.transport.close()
