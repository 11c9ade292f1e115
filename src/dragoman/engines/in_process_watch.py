"""Watches an engine that a program brings and that runs in this process.

It cannot be restarted, so a hang (see `subprocess.progress`) fails the calls that wait for it, is
logged with the name of the engine, and makes the server not ready until the engine makes progress
or some time has passed. Whether a job has yielded a step is seen from outside: between two steps,
an asynchronous generator waits for the same object. Nothing is done for each token.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager

from dragoman.engines.subprocess.progress import (
    CallKind,
    ProgressSource,
    ProgressWatch,
    RunningCall,
)
from dragoman.errors import EngineDown
from dragoman.types import Job

log = logging.getLogger("dragoman.engines")

MAX_TICK = 1.0  # seconds
TICKS_PER_TIMEOUT = 10


class GeneratorSource:
    """The steps of an asynchronous generator, which are counted by nobody."""

    def __init__(self, steps: AsyncIterable[object]) -> None:
        self._steps = steps

    def get_mark(self) -> object:
        """Return what the generator waits for."""
        return getattr(self._steps, "ag_await", None)

    def has_changed(self, mark: object) -> bool:
        """Whether it may have yielded since: it waits for something else, or for its reader.

        Without a mark it was not running then, and may have just started.
        """
        if not getattr(self._steps, "ag_running", False):
            return True
        return mark is not None and self.get_mark() is not mark


class InProcessWatch:
    """Watches the calls of one engine."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name = name  # of the engine, for the log
        self._timeout = timeout
        self._watch = ProgressWatch(timeout)
        self._numbers = itertools.count(1)
        self._limits: dict[int, asyncio.Timeout] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._stalled_until = 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether the engine hung a moment ago and has made no progress since."""
        return time.monotonic() < self._stalled_until

    @asynccontextmanager
    async def watch(
        self,
        kind: CallKind,
        size: int,
        job: Job | None = None,
        steps: AsyncIterable[object] | None = None,
    ) -> AsyncGenerator[None, None]:
        """Fail the call inside this block with `EngineDown` if the engine hangs.

        `size` is how many tokens it may process before the first step or the result.
        """
        number = next(self._numbers)
        source: ProgressSource | None = None if steps is None else GeneratorSource(steps)
        self._watch.add(RunningCall(number, kind, size, source, job))
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())
        try:
            async with asyncio.timeout(None) as limit:
                self._limits[number] = limit
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise EngineDown(
                "The engine made no progress on this request.", retry_after=1
            ) from None
        finally:
            del self._limits[number]
            self._watch.remove(number, is_cancelled=limit.expired())

    async def _tick(self) -> None:
        """Look at the calls until there are none."""
        interval = min(MAX_TICK, self._timeout / TICKS_PER_TIMEOUT)
        try:
            while self._watch.calls:
                started_at = time.monotonic()
                await asyncio.sleep(interval)
                # a longer pause is one of this process
                self._watch.tick(min(time.monotonic() - started_at, 2 * interval))
                if self._watch.has_progressed:
                    self._stalled_until = 0.0
                elif self._watch.is_hung():
                    self._fail_calls()
        finally:
            self._ticking = None

    def _fail_calls(self) -> None:
        log.error(
            "engine %s hangs: no progress for %.1f s; failing %d calls: %s",
            self._name,
            self._watch.idle,
            len(self._watch.calls),
            ", ".join(call.describe() for call in self._watch.calls.values()),
        )
        self._stalled_until = time.monotonic() + self._timeout
        self._watch.idle = 0.0
        for limit in self._limits.values():
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
