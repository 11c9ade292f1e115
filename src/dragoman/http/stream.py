"""One event stream to one client, and the clock that watches over all of them.

Headers are not sent at once: while the first token is awaited an error can still have its real
status. When the wait grows long the clock sends them, so that no proxy gives up; later it sends a
sign of life into every long silence. One clock serves all streams, so a stream costs no timer of
its own.

While a client is slow, `send` does not return, nothing is taken from the engine's mailbox, and
what piles up there is merged into one delta. So a slow reader costs memory bounded by its answer
and slows nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter as now

from dragoman.http.asgi import STREAM_HEADERS, DIRECT_WRITER, RequestContext
from dragoman.http.cancellation import Disconnected


class Stream:
    """Sends events one by one, each in a write of its own."""

    def __init__(
        self,
        exchange: RequestContext,
        opening: list[bytes],
    ) -> None:
        self._exchange = exchange
        self._send = exchange.send
        self._opening = opening
        self._direct = exchange.scope.get(DIRECT_WRITER)
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._sending = False
        self._since = now()
        self.started = False  # headers are on their way or out
        self.open = False  # headers and opening events are out

    async def start(self) -> None:
        """Send the headers and the opening events, unless that has been done."""
        if self._started is not None and not self.open:
            await asyncio.wait([self._started])
        if not self.started:
            self.started = True
            await self._open()

    async def _open(self) -> None:
        self._sending = True
        await self._exchange.start_response(200, STREAM_HEADERS)
        for event in self._opening:
            await self._write(event)
        self.open = True
        self._rest()

    def push(self, events: list[bytes], at: float) -> Awaitable[None] | None:
        """Send at once if that can be done without waiting, else say what to wait for."""
        direct = self._direct
        if direct is None or not self.open or not direct.ready:
            return self.send_frames(events)
        for event in events:
            direct.write(event)
        self._since = at
        return None

    async def send_frames(self, events: list[bytes]) -> None:
        if not self.open:
            await self.start()
        self._sending = True
        for event in events:
            await self._write(event)
        self._rest()

    async def finish(self) -> None:
        await self._write(b"", more=False)

    async def _write(self, event: bytes, more: bool = True) -> None:
        try:
            await self._send({"type": "http.response.body", "body": event, "more_body": more})
        except OSError:  # what servers say when the client has left
            raise Disconnected from None

    def _rest(self) -> None:
        self._sending = False
        self._since = now()

    async def send_keep_alive(self) -> None:
        with suppress(Disconnected, RuntimeError):  # the client left meanwhile
            await self.send_frames([self._exchange.ping])

    def tick(self, at: float, patience: float, ping: float) -> None:
        """Called by the clock: begin or ping as the time asks for."""
        quiet = at - self._since
        if self._sending:
            return
        if not self.started:
            if quiet >= patience:
                self.started = True
                self._started = self._loop.create_task(self._begin())
        elif quiet >= ping:
            self._pinging = self._loop.create_task(self.send_keep_alive())

    async def _begin(self) -> None:
        with suppress(Disconnected, RuntimeError):
            await self._open()


class StreamClock:
    """Ticks for every open stream; runs only while there is one."""

    def __init__(self, patience: float, ping: float) -> None:
        self._times = (patience, ping)
        self._every = max(0.01, min(0.25, patience / 2, ping / 4))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: set[Stream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    @contextmanager
    def watching(self, stream: Stream) -> Iterator[None]:
        self._streams.add(stream)
        if self._timer is None or self._loop is not asyncio.get_running_loop():
            self._arm()
        try:
            yield
        finally:
            self._streams.discard(stream)

    def _arm(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._every, self._tick)

    def _tick(self) -> None:
        self._timer = None
        at = now()
        for stream in list(self._streams):
            stream.tick(at, *self._times)
        if self._streams:
            self._arm()
