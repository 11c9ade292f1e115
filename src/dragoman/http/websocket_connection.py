"""One TCP connection that has become a WebSocket, guarded.

`websockets` knows the protocol; this bounds what it leaves open. A message that is too large or
does not arrive in time ends the connection, and so does a client that takes nothing of what was
written, or is not there any more when it is pinged. While the app has not asked for what came,
nothing more is read. Nothing is packed, so that nothing small can grow large here. The app sees
plain ASGI, and until it accepts, its refusal is an answer like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from dragoman.http.asgi import DIRECT_WRITER, Header, Message, Scope
from dragoman.http.closing import LingeringClose, StallTimer

if TYPE_CHECKING:
    from dragoman.http.connection import Connection

log = logging.getLogger("dragoman.http")
quiet = logging.getLogger("dragoman.websocket")  # the library tells of every coming and going
quiet.setLevel(logging.ERROR)
LINGER = 5.0  # seconds for the client to say goodbye too
PILE = 1024 * 1024  # bytes that were not taken: pings are not answered any more
ASKING = (b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")
PHRASES = {status.value: status.phrase for status in HTTPStatus}
UNHEARD, NOT_UTF8, LATE, FAILED, RESTART = 1006, 1007, 1008, 1011, 1012


def parse_handshake(
    headers: Iterable[Header], limit: int
) -> tuple[ServerProtocol, Response] | None:
    """The protocol for a client that asks properly, and what it will be told."""
    protocol = ServerProtocol(extensions=None, max_size=limit, logger=quiet)
    lines = [name + b": " + value + b"\r\n" for name, value in headers if name in ASKING]
    protocol.receive_data(b"GET / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
    asked = protocol.events_received()
    if not asked or not isinstance(asked[0], Request):
        return None
    response = protocol.accept(asked[0])
    return (protocol, response) if response.status_code == 101 else None


class WebSocketConnection(asyncio.Protocol):
    """Frames on one side, ASGI on the other."""

    def __init__(
        self, connection: Connection, protocol: ServerProtocol, response: Response, scope: Scope
    ) -> None:
        settings = connection.settings
        self._app: Callable[..., Any] = connection.app
        self._loop = connection.loop
        self._state = connection.server_state
        self.transport = connection.transport
        self._protocol = protocol
        self._response = response
        self._scope = scope
        self._times = (settings.receive_timeout, settings.ping, settings.stall)
        self._stall = StallTimer(self.transport, settings.stall)
        self._lingering = LingeringClose(self.transport)
        self._writable = asyncio.Event()
        if not connection.flow.write_paused:
            self._writable.set()
        self._early = b""  # what came before there was a yes
        self._part = bytearray()  # of a message in several frames
        self._binary = False
        self._came: deque[Message] = deque([{"type": "websocket.connect"}])
        self._news = asyncio.Event()
        self._reading = False
        self._heard = 0.0  # when something came
        self._refusal: Message = {}
        self._answered = False  # something was said to the request: yes, or no
        self._code: int | None = None  # why it is over
        self._deadline: asyncio.TimerHandle | None = None  # for a message to arrive whole
        self._beat: asyncio.TimerHandle | None = None
        self._parting: asyncio.TimerHandle | None = None

    def begin(self, rest: bytes) -> None:
        """Take the connection over, with what came behind the request."""
        self.transport.pause_reading()
        self._early = rest
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
            log.exception("the app broke")
        finally:
            self._scope = {}
            if not self._answered:
                self._refuse(500, [], b"")
            self._close(FAILED, "")

    # towards the app

    async def receive(self) -> Message:
        while not self._came:
            if self._code is not None:
                return {"type": "websocket.disconnect", "code": self._code, "reason": ""}
            self._news.clear()
            await self._news.wait()
        message = self._came.popleft()
        self._flow()
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.send":
            await self._writable.wait()
            if not self._open:
                raise BrokenPipeError
            self.write(message["text"].encode())
        elif kind == "websocket.accept":
            self._accept(message.get("headers", ()))
        elif kind == "websocket.close" and self._answered:
            self._close(message.get("code", 1000), message.get("reason") or "")
        elif kind == "websocket.close":
            self._refuse(403, [], b"")
        elif kind == "websocket.http.response.start":
            self._refusal = message
        elif kind == "websocket.http.response.body":
            start = self._refusal
            self._refuse(start["status"], start["headers"], message.get("body", b""))

    @property
    def ready(self) -> bool:
        """Whether `write` can be called: nothing has to be waited for, and somebody listens."""
        return self._open and self._writable.is_set()

    @property
    def _open(self) -> bool:
        return self._answered and self._code is None and not self.transport.is_closing()

    def write(self, data: bytes) -> None:
        self._protocol.send_text(data)
        self._flush()

    def _accept(self, headers: Iterable[Header]) -> None:
        if self.transport.is_closing():
            raise BrokenPipeError
        self._answered = True
        mine = self._response.headers
        for name, value in headers:
            mine[name.decode("latin-1")] = value.decode("latin-1")
        self._protocol.send_response(self._response)
        self._flush()
        self._beat = self._loop.call_later(self._times[1], self._tick)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
        self._flow()

    def _refuse(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        self._answered = True
        self._end(UNHEARD)
        if self.transport.is_closing():
            return
        phrase = PHRASES.get(status, "")
        head = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        head["connection"] = "close"
        self.transport.write(Response(status, phrase, head, body).serialize())
        self._lingering.start()
        self._stall.restart()

    def _close(self, code: int, reason: str) -> None:
        """Say goodbye, and wait a little for the client's."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self._end(code)
            self._flush()
            self._stall.restart()
            self._parting = self._loop.call_later(LINGER, self.transport.close)

    def _end(self, code: int) -> None:
        """There is nothing more to come for the app."""
        if self._code is None:
            self._code = code
        self._came.clear()
        self._part.clear()
        self._news.set()
        self._writable.set()
        for timer in (self._beat, self._deadline):
            if timer is not None:
                timer.cancel()
        self._beat = self._deadline = None

    # towards the client

    def data_received(self, data: bytes) -> None:
        if self._lingering.is_active:
            self._lingering.discard(data)
            return
        if not self._answered:  # a read that was under way when reading was paused
            self._early += data
            return
        self._heard = self._loop.time()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
        failure = self._protocol.close_sent if self._protocol.parser_exc is not None else None
        if failure is not None:
            self._end(failure.code)
        self._flush()
        self._flow()

    def _frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            close = self._protocol.close_rcvd
            self._end(UNHEARD if close is None else close.code)
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and self._code is None:
            if frame.opcode is not Opcode.CONT:
                self._binary = frame.opcode is Opcode.BINARY
            self._part += frame.data
            if frame.fin:
                self._message()

    def _message(self) -> None:
        part, self._part = self._part, bytearray()
        self._on_time()
        message: Message = {"type": "websocket.receive"}
        try:
            message["text"] = None if self._binary else part.decode()
        except UnicodeDecodeError:
            self._fail(NOT_UTF8, "This is not UTF-8.")
            return
        message["bytes"] = bytes(part) if self._binary else None
        self._came.append(message)
        self._news.set()

    def _flow(self) -> None:
        """Read as long as the app wants more and the client takes what it is told."""
        over = self._code is not None
        piled = self.transport.get_write_buffer_size() > PILE
        wanted = over or (self._answered and not self._came and not piled)
        if self.transport.is_closing():
            return
        if wanted and not self._reading:
            self._heard = self._loop.time()
            self.transport.resume_reading()
        elif self._reading and not wanted:
            self.transport.pause_reading()
        self._reading = wanted
        half = self._protocol.current_size is not None or len(self._protocol.reader.buffer) > 0
        if not half or not wanted or over:
            self._on_time()
        elif self._deadline is None:
            self._deadline = self._loop.call_later(
                self._times[0], self._fail, LATE, "The message did not arrive in time."
            )

    def _on_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

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
        if b"" in parts:  # the library's sign for the end
            if self._protocol.close_rcvd is None:  # the client may still be sending
                self._lingering.start()
            else:
                self.transport.close()
            self._stall.restart()

    def _tick(self) -> None:
        """Ping; a client that has said nothing since long before is not there any more."""
        _, ping, stall = self._times
        if self._reading and self._loop.time() - self._heard > ping + stall:
            self.transport.abort()
            return
        if self._writable.is_set():
            self._protocol.send_ping(b"")
            self._flush()
        self._beat = self._loop.call_later(ping, self._tick)

    def pause_writing(self) -> None:
        if self._code is None:
            self._writable.clear()
        self._stall.restart()

    def resume_writing(self) -> None:
        self._stall.on_buffer_drained(more_follows=self._code is None)
        self._writable.set()
        self._flow()

    def eof_received(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        self._end(UNHEARD)
        self._stall.stop()
        self._lingering.stop()
        if self._parting is not None:
            self._parting.cancel()

    def shutdown(self) -> None:
        """The server stops: nothing can be waited for."""
        self._close(RESTART, "")
        self.transport.close()
