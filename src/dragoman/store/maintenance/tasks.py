"""The background tasks of an open store: heartbeats and sweeps.

A heartbeat is written every few seconds. Once a minute, or earlier when a lot was written, a sweep
fails the running responses of dead servers, deletes expired rows and evicts the oldest rows of
owners that store too much.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, Unavailable
from dragoman.store.executor import StoreExecutor
from dragoman.store.rows import RewriteBody, StoreLimits, SweepCounts
from dragoman.types.detached_task import start_detached

if TYPE_CHECKING:
    from dragoman.store.servers import ServerProcess
    from dragoman.store.transaction import Transaction

log = logging.getLogger("dragoman.store")

HEARTBEAT_INTERVAL = 10.0  # seconds
SWEEP_INTERVAL = 60.0  # seconds


class Maintenance:
    """Heartbeats and sweeps of one store.

    `fail_body` rewrites the body of a response whose server died.
    """

    def __init__(
        self, executor: StoreExecutor, limits: StoreLimits, fail_body: RewriteBody
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._fail_body = fail_body
        self._written: Counter[str] = Counter()  # bytes since the last sweep, by owner
        self._sweep_early = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._record_heartbeat()
        await self._fail_abandoned()
        never = asyncio.Event()
        self._tasks = [
            start_detached(_repeat(self._record_heartbeat, HEARTBEAT_INTERVAL, never)),
            start_detached(_repeat(self._sweep_and_log, SWEEP_INTERVAL, self._sweep_early)),
        ]

    async def stop(self) -> None:
        """Stop the tasks, and fail what this server still runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            server = await self._executor.write(lambda tx: tx.servers.unregister())
            await self._fail_responses(server)
        except DragomanError:
            log.warning(
                "the database is not available: another server, or the next start, fails the "
                "responses that this server was running"
            )

    def count_written(self, written: Counter[str]) -> None:
        """Sweep early once an eighth of the store's size, or of an owner's quota, was written."""
        self._written += written
        for owner in written:
            quota = self._limits.find_limits(owner).stored_bytes
            if quota is not None and self._written[owner] > quota // 8:
                self._sweep_early.set()
        if self._written.total() > self._limits.size // 8:
            self._sweep_early.set()

    async def sweep(self) -> SweepCounts:
        self._written.clear()
        self._sweep_early.clear()
        limits = self._limits
        counts = SweepCounts(
            failed=await self._fail_abandoned(),
            expired=await self._repeat_batch(lambda tx: tx.maintenance.delete_expired(limits.ttl)),
            evicted=await self._repeat_batch(lambda tx: tx.maintenance.evict_oldest(limits)),
        )
        await self._executor.shrink()
        return counts

    async def _record_heartbeat(self) -> None:
        await self._executor.write(lambda tx: tx.servers.record_heartbeat())

    async def _sweep_and_log(self) -> None:
        counts = await self.sweep()
        if counts != SweepCounts():
            log.info(
                "cleaned up the store: %d responses failed, %d rows expired, %d rows evicted",
                counts.failed,
                counts.expired,
                counts.evicted,
            )

    async def _fail_abandoned(self) -> int:
        dead = await self._executor.read(lambda tx: tx.servers.list_dead())
        return sum([await self._fail_responses(server) for server in dead])

    async def _fail_responses(self, server: ServerProcess) -> int:
        count, finished = 0, False
        while not finished:
            failed, finished = await self._executor.write(
                lambda tx: tx.servers.fail_responses(server, self._fail_body)
            )
            count += failed
        return count

    async def _repeat_batch(self, batch: Callable[[Transaction], int]) -> int:
        """Repeat a batch until it changes nothing."""
        total = count = await self._executor.write(batch, frees_space=True)
        while count:
            count = await self._executor.write(batch, frees_space=True)
            total += count
        return total


async def _repeat(
    task: Callable[[], Awaitable[None]], interval: float, early: asyncio.Event
) -> None:
    """Run a task for ever. A failure is logged, and the task is tried again."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(interval * random.uniform(0.8, 1.2)):
                await early.wait()
        try:
            await task()
        except Unavailable:
            log.warning("the database is not available; maintenance is tried again later")
        except Exception:
            log.exception("maintenance of the store failed")
