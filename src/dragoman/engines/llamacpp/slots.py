"""Who may use the server's slots, first come first served.

The server would take any number of requests and hand out its slots by a rule of its own, under
which a request for several choices can wait for ever. So it never gets more than it has slots for.
A request that waits here costs it nothing and is cancelled by walking away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class SlotPool:
    """So many slots, and a queue for them."""

    def __init__(self, count: int) -> None:
        self.free = count
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def acquire(self, count: int) -> AsyncGenerator[None, None]:
        """Hold so many slots."""
        if self._queue or self.free < count:
            await self._wait(count)
        else:
            self.free -= count
        try:
            yield
        finally:
            self._give(count)

    async def _wait(self, count: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(count)
            else:
                self._queue.remove((count, turn))
                self._give(0)  # who stood behind may fit now
            raise

    def _give(self, count: int) -> None:
        self.free += count
        while self._queue and self._queue[0][0] <= self.free:
            taken, turn = self._queue.popleft()
            if turn.cancelled():
                continue
            self.free -= taken
            turn.set_result(None)
