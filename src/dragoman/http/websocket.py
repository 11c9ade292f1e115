"""WebSockets as handlers see them, over whatever server the app runs in.

A handler asks `Sockets` for the socket of its exchange, accepts it, receives texts and sends texts,
from several tasks if it likes. What comes in is taken from the server by a task of the socket's
own, so that the client's leaving is noticed whatever the handler does; what is not yet asked for is
kept, up to a limit.

A socket is at rest while its handler waits in `receive` and is not `working`. One that rests for
too long is closed. When the server is to stop, those at rest are closed at once, the others as soon
as they come to rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from dragoman.errors import DragomanError, Draining
from dragoman.http.asgi import DIRECT_WRITER, Message, RequestContext
from dragoman.http.cancellation import Disconnected

IDLE = 3600.0  # seconds at rest before a socket is closed
WAITING = 1000  # texts that are kept until the handler asks for them
NORMAL, GOING_AWAY, NOT_TEXT, TOO_MUCH, TOO_BIG = 1000, 1001, 1003, 1008, 1009
BROKEN, RESTART = 1011, 1012
UNSAID, UNHEARD = 1005, 1006  # stand for a close without a code, and for none at all
FRIENDLY = (NORMAL, GOING_AWAY, UNSAID, RESTART)
STOPPING = "The server is stopping."
GOODBYE = 1.0  # seconds to get a close through
LONGEST_REASON = 123


class WebSocketSession:
    """One WebSocket."""

    def __init__(self, exchange: RequestContext, sockets: WebSocketSessions) -> None:
        self._exchange = exchange
        self._sockets = sockets
        self._direct = exchange.scope.get(DIRECT_WRITER)
        self._texts: deque[bytes] = deque()
        self._kept = 0  # bytes of those
        self._news = asyncio.Event()
        self._gone = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._working = 0
        self.accepted = False
        self.close_code: int | None = None  # why it was closed, by whomever

    async def accept(self) -> None:
        """Say yes. Until then an error is answered as it is over HTTP."""
        if self._sockets.draining is not None:
            raise Draining(STOPPING, retry_after=self._sockets.draining)
        exchange = self._exchange
        if (await exchange.receive())["type"] != "websocket.connect":
            raise Disconnected
        exchange.status = 101
        await self._send({"type": "websocket.accept", "headers": exchange.response_headers})
        self.accepted = True
        self._reading = asyncio.create_task(self._read())

    async def receive(self) -> bytes:
        """The next text. Ends with `Disconnected` once there will be none."""
        while True:
            if self._sockets.draining is not None and not self._working:
                await self.close(RESTART, STOPPING)
            if self.close_code is not None:
                raise Disconnected
            if self._texts:
                text = self._texts.popleft()
                self._kept -= len(text)
                return text
            await self._wait()

    async def _wait(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(self._sockets.idle):
                await self._news.wait()
        except TimeoutError:
            if not self._working:
                await self.close(NORMAL, "Nothing was said for too long.")

    async def send(self, text: bytes) -> None:
        """Send a text; waits while the client is slow to take what was sent before."""
        if self.close_code is not None:
            raise Disconnected
        direct = self._direct
        if direct is not None and direct.ready:
            direct.write(text)
        else:
            await self._send({"type": "websocket.send", "text": text.decode()})

    def push(self, texts: list[bytes]) -> Awaitable[None] | None:
        """Send at once if that can be done without waiting, else say what to wait for."""
        direct = self._direct
        if direct is None or not direct.ready:
            return self._send_all(texts)
        for text in texts:
            direct.write(text)
        return None

    async def _send_all(self, texts: list[bytes]) -> None:
        for text in texts:
            await self.send(text)

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Say goodbye, unless one side has done so."""
        if not self.accepted or self.close_code is not None:
            return
        self._end(code)
        short = reason.encode()[:LONGEST_REASON].decode(errors="ignore")
        with suppress(Disconnected, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await self._send({"type": "websocket.close", "code": code, "reason": short})

    async def wait_closed(self) -> None:
        """Return when the socket is closed, by whichever side."""
        await self._gone.wait()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While this is open the socket is not at rest, though its handler may wait for texts."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1
            self.wake()

    def wake(self) -> None:
        """Let a handler that waits look again whether it may."""
        self._news.set()

    def stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _send(self, message: Message) -> None:
        try:
            await self._exchange.send(message)
        except (OSError, RuntimeError):  # what servers say when the client has left
            self._end(UNHEARD)
            raise Disconnected from None

    async def _read(self) -> None:
        try:
            await self._take()
        finally:
            self._end(UNHEARD)

    async def _take(self) -> None:
        while self.close_code is None:
            message = await self._exchange.receive()
            if message["type"] == "websocket.disconnect":
                self._end(message.get("code") or UNSAID)
                return
            text = message.get("text")
            if text is None:
                await self.close(NOT_TEXT, "Only texts are understood here.")
                return
            await self._keep(text.encode())

    async def _keep(self, text: bytes) -> None:
        limit = self._sockets.limit
        if len(text) > limit:
            await self.close(TOO_BIG, f"A message may have {limit:,} bytes.")
            return
        if self._texts and (len(self._texts) >= WAITING or self._kept + len(text) > limit):
            # who stopped reading here would not hear that the client has left
            await self.close(TOO_MUCH, "Too much waits to be answered.")
            return
        self._texts.append(text)
        self._kept += len(text)
        self._news.set()

    def _end(self, code: int) -> None:
        if self.close_code is None:
            self.close_code = code
        self._gone.set()
        self._news.set()


class WebSocketSessions:
    """All WebSockets of a server."""

    def __init__(self, limit: int, idle: float = IDLE) -> None:
        self.limit = limit  # bytes of a message
        self.idle = idle
        self.draining: float | None = None  # seconds, once the server is stopping
        self._open: set[WebSocketSession] = set()
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._open)

    def drain(self, seconds: float) -> None:
        """Close what rests, and the others when they come to rest."""
        self.draining = seconds
        for socket in self._open:
            socket.wake()

    async def close_all(self, patience: float = 0.0) -> None:
        """Close all that are open, whatever they do, and wait until their handlers have ended.

        Those that have a last word to say get so many seconds for it.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._none.wait()
        await asyncio.gather(*(socket.close(RESTART, STOPPING) for socket in self._open))
        await self._none.wait()

    @asynccontextmanager
    async def open(self, exchange: RequestContext) -> AsyncGenerator[WebSocketSession, None]:
        """The socket of an exchange, to be accepted; it is closed when this is left.

        An error that comes after it was accepted is told by a code; a client that says goodbye is
        none.
        """
        socket = WebSocketSession(exchange, self)
        self._open.add(socket)
        self._none.clear()
        try:
            yield socket
            await socket.close()
        except Disconnected:
            if socket.close_code not in FRIENDLY:
                raise
        except DragomanError as error:
            await socket.close(RESTART if isinstance(error, Draining) else BROKEN, error.message)
            raise
        except BaseException:
            await socket.close(BROKEN)
            raise
        finally:
            socket.stop_reading()
            self._open.discard(socket)
            if not self._open:
                self._none.set()
