"""The runs in progress, and how they are interrupted.

A request is tracked from the moment it is decoded. When its client disconnects, its deadline passes
or the server must stop, the task that works on it is cancelled at once, and closing the pipeline
cancels the engine. Background runs are tracked, too, so that the server knows of them when it
stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeAlias

from dragoman.errors import ENGINE_FAILURE, DeadlineExceeded, EngineFailed
from dragoman.telemetry.record import Deadline, now

log = logging.getLogger("dragoman.http")


# Calls a function when the client disconnects; returns a function that stops watching.
WatchDisconnect: TypeAlias = Callable[[Callable[[], None]], Callable[[], object]]


class Disconnected(Exception):
    """The client has disconnected, so a response cannot be sent."""


class ActiveRun:
    """Interrupts the task that works on a request, with a reason."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.reason: Exception | None = None

    def interrupt(self, reason: Exception) -> None:
        if self.reason is None and self._task is not None:
            self.reason = reason
            self._task.cancel()

    def on_disconnect(self) -> None:
        self.interrupt(Disconnected())

    def detach(self) -> None:
        """Forget the task: it continues with other work, which must not be interrupted."""
        self._task = None


def start_timer(run: ActiveRun, deadline: Deadline) -> asyncio.TimerHandle:
    """Interrupt a run when its deadline passes."""
    seconds = max(0.0, deadline.at - now())
    error = DeadlineExceeded(f"The request was not finished within {deadline.seconds:g} seconds.")
    return asyncio.get_running_loop().call_later(seconds, run.interrupt, error)


def watch_awaitable(
    disconnected: Awaitable[None], on_disconnect: Callable[[], None]
) -> Callable[[], object]:
    """Call a function when `disconnected` completes; return a function that stops watching."""
    waiting = asyncio.ensure_future(disconnected)
    waiting.add_done_callback(lambda task: None if task.cancelled() else on_disconnect())
    return waiting.cancel


class TrackedRun:
    """Tracks the work of the current task inside its block."""

    __slots__ = ("_deadline", "_registry", "_run", "_stop_watching", "_timer", "_watch")

    def __init__(
        self, registry: RunRegistry, watch: WatchDisconnect | None, deadline: Deadline | None
    ) -> None:
        self._registry = registry
        self._watch = watch
        self._deadline = deadline

    def __enter__(self) -> ActiveRun:
        run = self._run = ActiveRun()
        deadline, watch = self._deadline, self._watch
        self._timer = None if deadline is None else start_timer(run, deadline)
        self._stop_watching = None if watch is None else watch(run.on_disconnect)
        self._registry.add(run)
        return run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run.detach()
        if self._timer is not None:
            self._timer.cancel()
        if self._stop_watching is not None:
            self._stop_watching()
        self._registry.remove(self._run)
        if isinstance(error, asyncio.CancelledError):
            raise _explain_cancellation(self._run) from None


class RunRegistry:
    """All runs in progress."""

    def __init__(self) -> None:
        self._active: set[ActiveRun] = set()
        self._idle: asyncio.Event | None = None  # while something waits for it

    def __len__(self) -> int:
        return len(self._active)

    async def wait_idle(self) -> None:
        while self._active:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    def interrupt_all(self, make_reason: Callable[[], Exception]) -> None:
        for run in list(self._active):
            run.interrupt(make_reason())

    def track(self, watch: WatchDisconnect | None, deadline: Deadline | None = None) -> TrackedRun:
        """Return a block in which the work of the current task is tracked.

        If the client disconnects meanwhile, the work ends with `Disconnected`; if the deadline
        passes, with `DeadlineExceeded`.
        """
        return TrackedRun(self, watch, deadline)

    def add(self, run: ActiveRun) -> None:
        self._active.add(run)

    def remove(self, run: ActiveRun) -> None:
        self._active.discard(run)
        if not self._active and self._idle is not None:
            self._idle.set()
            self._idle = None


def _explain_cancellation(run: ActiveRun) -> BaseException:
    """Return the exception to raise: ours, the server's shutdown, or an engine's mistake."""
    task = asyncio.current_task()
    reason, run.reason = run.reason, None  # its traceback leads to the run: a reference cycle
    if task is not None and reason is not None and task.uncancel() == 0:
        return reason
    if task is not None and task.cancelling() == 0:
        log.error("the engine raised CancelledError")
        return EngineFailed(ENGINE_FAILURE)
    return asyncio.CancelledError()
