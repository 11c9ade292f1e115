"""WebSockets as handlers see them, on any ASGI server.

A handler opens the session of its request with `WebSocketSessions.open`, accepts it, and receives
and sends text messages, possibly from several tasks. The session reads from the server in a task
of its own, so that a disconnect is noticed whatever the handler does; messages that the handler has
not asked for yet are queued, up to a limit.

A session is idle while its handler waits in `receive` and is not `busy`. A session that is idle for
too long is closed. When the server stops, idle sessions are closed at once, the others as soon as
they are idle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from websockets.frames import CloseCode

from dragoman.errors import DragomanError, Draining, OutOfMemory
from dragoman.http.asgi import DIRECT_WRITER, Message, RequestContext
from dragoman.http.body import BodyLimit
from dragoman.http.cancellation import Disconnected

IDLE_TIMEOUT = 3600.0  # seconds until an idle session is closed
MAX_QUEUED = 1000  # messages that the handler has not asked for yet
CLOSE_TIMEOUT = 1.0  # seconds to send a close frame
MAX_REASON_LENGTH = 123  # bytes, by the WebSocket protocol
STOPPING = "The server is stopping."
REGULAR_CLOSES = (
    CloseCode.NORMAL_CLOSURE,
    CloseCode.GOING_AWAY,
    CloseCode.NO_STATUS_RCVD,  # a close frame without a code
    CloseCode.SERVICE_RESTART,
)


class WebSocketSession:
    """One WebSocket."""

    def __init__(self, request: RequestContext, sessions: WebSocketSessions) -> None:
        self._request = request
        self._sessions = sessions
        self._direct = request.scope.get(DIRECT_WRITER)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._current_bytes = 0  # of the message that the handler works on
        self._hold = sessions.limit.budget.open_hold(request.owner)  # for all of these bytes
        self._wakeup = asyncio.Event()
        self._closed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._busy = 0
        self.accepted = False
        self.close_code: int | None = None  # set once either side has closed

    async def accept(self) -> None:
        """Accept the handshake. Until then an error is sent as an HTTP response."""
        if self._sessions.drain_seconds is not None:
            raise Draining(STOPPING, retry_after=self._sessions.drain_seconds)
        request = self._request
        if (await request.receive())["type"] != "websocket.connect":
            raise Disconnected
        request.status = 101
        if self._direct is not None:
            self._direct.set_owner(request.owner)
        await self._send({"type": "websocket.accept", "headers": request.response_headers})
        self.accepted = True
        self._reader = asyncio.create_task(self._read())

    async def receive(self) -> bytes:
        """Return the next message. Raises `Disconnected` once there will be none."""
        self._current_bytes = 0
        self._hold.resize(self._queued_bytes)
        while True:
            if self._sessions.drain_seconds is not None and not self._busy:
                await self.close(CloseCode.SERVICE_RESTART, STOPPING)
            if self.close_code is not None:
                raise Disconnected
            if self._queue:
                text = self._queue.popleft()
                self._queued_bytes -= len(text)
                self._current_bytes = len(text)
                return text
            await self._wait()

    async def _wait(self) -> None:
        self._wakeup.clear()
        try:
            async with asyncio.timeout(self._sessions.idle_timeout):
                await self._wakeup.wait()
        except TimeoutError:
            if not self._busy:
                await self.close(CloseCode.NORMAL_CLOSURE, "The connection was idle for too long.")

    async def send(self, text: bytes) -> None:
        """Send a message; waits while the client is slow to read earlier ones."""
        if self.close_code is not None:
            raise Disconnected
        direct = self._direct
        if direct is not None and direct.is_ready:
            direct.write(text)
        else:
            await self._send({"type": "websocket.send", "text": text.decode()})

    def push(self, texts: list[bytes]) -> Awaitable[None] | None:
        """Send messages at once if that needs no waiting, else return what must be awaited."""
        direct = self._direct
        if direct is None or not direct.is_ready:
            return self._send_all(texts)
        for text in texts:
            direct.write(text)
        return None

    async def _send_all(self, texts: list[bytes]) -> None:
        for text in texts:
            await self.send(text)

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Send a close frame, unless one side has closed already."""
        if not self.accepted or self.close_code is not None:
            return
        self._set_closed(code)
        short = reason.encode()[:MAX_REASON_LENGTH].decode(errors="ignore")
        with suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._send({"type": "websocket.close", "code": code, "reason": short})

    async def wait_closed(self) -> None:
        """Return when either side has closed."""
        await self._closed.wait()

    @contextmanager
    def mark_busy(self) -> Iterator[None]:
        """Mark the session as busy: it is not idle even if its handler waits for messages."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self.wake()

    def wake(self) -> None:
        """Let a waiting handler check again whether it may wait."""
        self._wakeup.set()

    def end(self) -> None:
        """Read no more, and give back the memory of messages."""
        if self._reader is not None:
            self._reader.cancel()
        self._hold.release()

    async def _send(self, message: Message) -> None:
        try:
            await self._request.send(message)
        except (OSError, RuntimeError):  # raised by servers when the client has disconnected
            self._set_closed(CloseCode.ABNORMAL_CLOSURE)
            raise Disconnected from None

    async def _read(self) -> None:
        try:
            await self._read_messages()
        finally:
            self._set_closed(CloseCode.ABNORMAL_CLOSURE)

    async def _read_messages(self) -> None:
        while self.close_code is None:
            message = await self._request.receive()
            if message["type"] == "websocket.disconnect":
                self._set_closed(message.get("code") or CloseCode.NO_STATUS_RCVD)
                return
            text = message.get("text")
            if text is None:
                await self.close(CloseCode.UNSUPPORTED_DATA, "Only text messages are supported.")
                return
            await self._enqueue(text.encode())

    async def _enqueue(self, text: bytes) -> None:
        limit = self._sessions.limit.get()
        if len(text) > limit:
            await self.close(
                CloseCode.MESSAGE_TOO_BIG, f"A message may have at most {limit:,} bytes."
            )
            return
        is_full = len(self._queue) >= MAX_QUEUED or self._queued_bytes + len(text) > limit
        if self._queue and is_full:
            # If we stopped reading here, we would not notice that the client disconnects.
            await self.close(CloseCode.POLICY_VIOLATION, "Too many messages are waiting.")
            return
        try:
            self._hold.resize(self._current_bytes + self._queued_bytes + len(text))
        except OutOfMemory as error:
            await self.close(CloseCode.TRY_AGAIN_LATER, error.message)
            return
        self._queue.append(text)
        self._queued_bytes += len(text)
        self._wakeup.set()

    def _set_closed(self, code: int) -> None:
        if self.close_code is None:
            self.close_code = code
        self._closed.set()
        self._wakeup.set()


class WebSocketSessions:
    """All WebSockets of a server."""

    def __init__(self, limit: BodyLimit, idle_timeout: float = IDLE_TIMEOUT) -> None:
        self.limit = limit  # of messages, which are like bodies
        self.idle_timeout = idle_timeout
        self.drain_seconds: float | None = None  # set once the server is stopping
        self._open: set[WebSocketSession] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def __len__(self) -> int:
        return len(self._open)

    def drain(self, seconds: float) -> None:
        """Close the idle sessions now, and the others as soon as they are idle."""
        self.drain_seconds = seconds
        for session in self._open:
            session.wake()

    async def close_all(self, timeout: float = 0.0) -> None:
        """Close all sessions and wait until their handlers have ended.

        Sessions that have a last message to send get `timeout` seconds for it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_closed.wait()
        await asyncio.gather(
            *(session.close(CloseCode.SERVICE_RESTART, STOPPING) for session in self._open)
        )
        await self._all_closed.wait()

    @asynccontextmanager
    async def open(self, request: RequestContext) -> AsyncGenerator[WebSocketSession, None]:
        """Yield the session of a request, to be accepted; it is closed on leaving the block.

        An error after it was accepted becomes a close code; a regular close by the client is not an
        error.
        """
        session = WebSocketSession(request, self)
        self._open.add(session)
        self._all_closed.clear()
        try:
            yield session
            await session.close()
        except Disconnected:
            if session.close_code not in REGULAR_CLOSES:
                raise
        except DragomanError as error:
            code = (
                CloseCode.SERVICE_RESTART
                if isinstance(error, Draining)
                else CloseCode.INTERNAL_ERROR
            )
            await session.close(code, error.message)
            raise
        except BaseException:
            await session.close(CloseCode.INTERNAL_ERROR)
            raise
        finally:
            session.end()
            self._open.discard(session)
            if not self._open:
                self._all_closed.set()
