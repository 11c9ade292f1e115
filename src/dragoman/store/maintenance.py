"""What a store does by itself: say that this server lives, and sweep.

A heartbeat goes out every few seconds. Once a minute, or earlier when a lot has come, what dead
servers left running is failed, and what is too old or too much is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, Unavailable
from dragoman.store.executor import StoreExecutor
from dragoman.store.rows import StoreLimits, SweepCounts

if TYPE_CHECKING:
    from dragoman.store.servers import ServerProcess
    from dragoman.store.transaction import Transaction

log = logging.getLogger("dragoman.store")

BEAT = 10.0  # seconds between two heartbeats
SWEEP = 60.0  # seconds between two sweeps

Rewrite = Callable[[bytes], bytes]


class Maintenance:
    """The chores of one open store. `failed` rewrites the body of what a dead server ran."""

    def __init__(self, line: StoreExecutor, limits: StoreLimits, failed: Rewrite) -> None:
        self._line = line
        self._limits = limits
        self._failed = failed
        self._written = 0  # bytes since the last sweep
        self._much = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._beat()
        await self._bury_dead()
        never = asyncio.Event()
        self._tasks = [
            asyncio.create_task(_repeat(self._beat, BEAT, never)),
            asyncio.create_task(_repeat(self._tidy, SWEEP, self._much)),
        ]

    async def stop(self) -> None:
        """End them. What this server still ran has failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._bury(await self._line.write(lambda desk: desk.servers.leave()))
        except DragomanError:
            log.warning("the store could not be left in order")

    def count(self, size: int) -> None:
        """So many bytes are being written."""
        self._written += size
        if self._written > self._limits.size // 8:
            self._much.set()

    async def sweep(self) -> SweepCounts:
        self._written = 0
        self._much.clear()
        limits = self._limits
        swept = SweepCounts(
            failed=await self._bury_dead(),
            expired=await self._all(lambda desk: desk.sweeping.expired(limits.ttl)),
            evicted=await self._all(lambda desk: desk.sweeping.evicted(limits.size)),
        )
        await self._line.shrink()
        return swept

    async def _beat(self) -> None:
        await self._line.write(lambda desk: desk.servers.beat())

    async def _tidy(self) -> None:
        swept = await self.sweep()
        if swept != SweepCounts():
            log.info("swept the store: %s", swept)

    async def _bury_dead(self) -> int:
        dead = await self._line.read(lambda desk: desk.servers.dead())
        return sum([await self._bury(server) for server in dead])

    async def _bury(self, server: ServerProcess) -> int:
        count, over = 0, False
        while not over:
            done, over = await self._line.write(
                lambda desk: desk.servers.bury(server, self._failed)
            )
            count += done
        return count

    async def _all(self, batch: Callable[[Transaction], int]) -> int:
        """Repeat until nothing is left to do."""
        count = done = await self._line.write(batch)
        while done:
            done = await self._line.write(batch)
            count += done
        return count


async def _repeat(chore: Callable[[], Awaitable[None]], every: float, early: asyncio.Event) -> None:
    """Do a chore for ever. What goes wrong with it once may go well the next time."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(every * random.uniform(0.8, 1.2)):
                await early.wait()
        try:
            await chore()
        except Unavailable:
            log.warning("the store is out of reach")
        except Exception:
            log.exception("a chore of the store failed")
