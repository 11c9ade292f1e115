"""Access to the native server's slots, first come first served.

The server accepts any number of requests and assigns its slots by a rule of its own, under which a
request for several choices can wait forever. So it never gets more requests than it has slots. A
request that waits here costs the server nothing and is cancelled without it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class SlotPool:
    """A number of slots and a queue for them."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, count: int) -> AsyncGenerator[None, None]:
        """Hold `count` slots."""
        if self._queue or self.free < count:
            await self._wait(count)
        else:
            self.free -= count
        try:
            yield
        finally:
            self._release(count)

    async def _wait(self, count: int) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._release(count)
            else:
                self._queue.remove((count, admitted))
                self._release(0)  # a smaller request behind this one may fit now
            raise

    def _release(self, count: int) -> None:
        self.free += count
        while self._queue and self._queue[0][0] <= self.free:
            wanted, admitted = self._queue.popleft()
            if admitted.cancelled():
                continue
            self.free -= wanted
            admitted.set_result(None)
