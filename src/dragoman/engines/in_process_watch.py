"""Watches an engine that a program brings and that runs in this process.

It cannot be restarted, so a hang (see `subprocess.progress`) fails the calls that wait for it, is
logged with the name of the engine, and makes the server not ready until the engine makes progress
or some time has passed. Whether a job has yielded a step is seen from outside: its reader has more
tokens, or the asynchronous generator waits for another object. Nothing is done for each token.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from types import TracebackType

from dragoman.engines.adapter import get_engine_name
from dragoman.engines.subprocess.progress import (
    CallKind,
    ProgressSource,
    ProgressWatch,
    RunningCall,
)
from dragoman.errors import EngineDown
from dragoman.types import Job
from dragoman.types.detached_task import start_detached

log = logging.getLogger("dragoman.engines")

MAX_TICK = 1.0  # seconds
TICKS_PER_TIMEOUT = 10


class GeneratedSteps:
    """The steps of an asynchronous generator, and how many tokens its reader has got from it."""

    def __init__(self, steps: AsyncIterable[object], count_tokens: Callable[[], int]) -> None:
        self._steps = steps
        self._count_tokens = count_tokens

    def get_state(self) -> tuple[int, object]:
        """Return how many tokens came, and what the generator waits for."""
        return self._count_tokens(), getattr(self._steps, "ag_await", None)

    def has_changed(self, state: tuple[int, object]) -> bool:
        """Whether it has yielded since: tokens came, or it waits for something else or its reader.

        If it waited for nothing, it may have just started.
        """
        tokens, waits_for = state
        if not getattr(self._steps, "ag_running", False) or self._count_tokens() != tokens:
            return True
        return waits_for is not None and getattr(self._steps, "ag_await", None) is not waits_for


class WatchedCall:
    """A call inside a block. Each request has two, so this is a class: a generator is slower."""

    __slots__ = ("_cancelling", "_task", "_watch", "call", "has_failed")

    def __init__(self, watch: InProcessWatch, call: RunningCall) -> None:
        self._watch = watch
        self.call = call
        self.has_failed = False  # the engine hangs

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("Calls of engines are watched inside tasks only.")
        self._task, self._cancelling = task, task.cancelling()
        self._watch.add(self)

    def fail(self) -> None:
        """Cancel the work inside the block, which then ends with `EngineDown`."""
        if not self.has_failed:
            self.has_failed = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.remove(self)
        if not self.has_failed:
            return
        # a request may be cancelled for another reason at the same time
        is_last = self._task.uncancel() <= self._cancelling
        if is_last and isinstance(error, asyncio.CancelledError):
            message = "The engine made no progress on this request."
            raise EngineDown(message, retry_after=1) from None


class InProcessWatch:
    """Watches the calls of one engine."""

    def __init__(self, engine: object, timeout: float) -> None:
        self._name = get_engine_name(engine)
        self._timeout = timeout
        probe = getattr(engine, "probe", None)
        self._probe: Callable[[], Awaitable[float]] | None = probe if callable(probe) else None
        self._watch = ProgressWatch(timeout, has_probe=self._probe is not None)
        self._numbers = itertools.count(1)
        self._calls: dict[int, WatchedCall] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._stalled_until = 0.0

    @property
    def is_stalled(self) -> bool:
        """Whether the engine hung a moment ago and has made no progress since."""
        return time.monotonic() < self._stalled_until

    def watch(
        self,
        kind: CallKind,
        size: int,
        job: Job | None = None,
        steps: ProgressSource | None = None,
    ) -> WatchedCall:
        """Fail the call inside this block with `EngineDown` if the engine hangs.

        `size` is how many tokens it may process before the first step or the result.
        """
        return WatchedCall(self, RunningCall(next(self._numbers), kind, size, steps, job))

    def add(self, watched: WatchedCall) -> None:
        call = watched.call
        self._watch.add(call)
        self._calls[call.number] = watched
        if self._ticking is None:
            self._ticking = start_detached(self._watch_calls())

    def remove(self, watched: WatchedCall) -> None:
        number = watched.call.number
        del self._calls[number]
        if watched.has_failed:
            self._watch.drop_stuck_call(number)
        else:
            self._watch.remove(number, is_cancelled=False)

    async def _watch_calls(self) -> None:
        """Check at intervals whether the calls make progress, until no call is left."""
        interval = min(MAX_TICK, self._timeout / TICKS_PER_TIMEOUT)
        probing: asyncio.Task[None] | None = None
        try:
            while self._watch.calls:
                started_at = time.monotonic()
                if self._probe is not None and self._watch.start_probe():
                    probing = asyncio.create_task(self._probe_engine(self._probe))
                await asyncio.sleep(interval)
                # if it took longer, this process itself was paused
                self._watch.tick(min(time.monotonic() - started_at, 2 * interval))
                if self._watch.has_progressed:
                    self._stalled_until = 0.0
                elif self._watch.is_hung():
                    self._stalled_until = time.monotonic() + self._timeout
                    self._fail_calls([*self._watch.calls.values()], self._watch.idle)
                    self._watch.idle = 0.0
                self._fail_calls(self._watch.find_stuck_calls(), self._watch.limit)
        finally:
            self._ticking = None
            if probing is not None:
                probing.cancel()
                self._watch.abandon_probe()

    async def _probe_engine(self, probe: Callable[[], Awaitable[float]]) -> None:
        """Probe the engine once. If `probe` itself fails, the engine is not probed again."""
        try:
            self._watch.end_probe(float(await probe()))
        except Exception:
            log.exception("engine %s: `probe` failed", self._name)
            self._watch.has_probe = False

    def _fail_calls(self, calls: Sequence[RunningCall], seconds: float) -> None:
        if not calls:
            return
        log.error(
            "engine %s hangs: no progress for %.1f s; failing %s",
            self._name,
            seconds,
            ", ".join(call.describe() for call in calls),
        )
        for call in calls:
            self._calls[call.number].fail()
