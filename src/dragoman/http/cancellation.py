"""The runs in progress, and how they are interrupted.

A request is tracked from the moment it is decoded. When its client disconnects, its deadline passes
or the server must stop, the task that works on it is cancelled at once, and closing the pipeline
cancels the engine. Background runs are tracked, too, so that the server knows of them when it
stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from dragoman.errors import ENGINE_FAILURE, DeadlineExceeded, EngineFailed
from dragoman.telemetry.record import Deadline, now

log = logging.getLogger("dragoman.http")


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

    def detach(self) -> None:
        """Forget the task: it continues with other work, which must not be interrupted."""
        self._task = None


def start_timer(run: ActiveRun, deadline: Deadline) -> asyncio.TimerHandle:
    """Interrupt a run when its deadline passes."""
    seconds = max(0.0, deadline.at - now())
    error = DeadlineExceeded(f"The request was not finished within {deadline.seconds:g} seconds.")
    return asyncio.get_running_loop().call_later(seconds, run.interrupt, error)


class RunRegistry:
    """All runs in progress."""

    def __init__(self) -> None:
        self._active: set[ActiveRun] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._active)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def interrupt_all(self, make_reason: Callable[[], Exception]) -> None:
        for run in list(self._active):
            run.interrupt(make_reason())

    @asynccontextmanager
    async def track(
        self, disconnected: Awaitable[None] | None, deadline: Deadline | None = None
    ) -> AsyncGenerator[ActiveRun, None]:
        """Track the work of the current task.

        If `disconnected` completes meanwhile, the work ends with `Disconnected`; if the deadline
        passes, with `DeadlineExceeded`.
        """
        run = ActiveRun()
        timer = None if deadline is None else start_timer(run, deadline)
        waiting = None if disconnected is None else asyncio.ensure_future(disconnected)
        if waiting is not None:
            waiting.add_done_callback(
                lambda task: None if task.cancelled() else run.interrupt(Disconnected())
            )
        self._active.add(run)
        self._idle.clear()
        try:
            yield run
        except asyncio.CancelledError:
            raise self._explain_cancellation(run) from None
        finally:
            run.detach()
            if timer is not None:
                timer.cancel()
            if waiting is not None:
                waiting.cancel()
            self._active.discard(run)
            if not self._active:
                self._idle.set()

    @staticmethod
    def _explain_cancellation(run: ActiveRun) -> BaseException:
        """Return the exception to raise: ours, the server's shutdown, or an engine's mistake."""
        task = asyncio.current_task()
        if task is not None and run.reason is not None and task.uncancel() == 0:
            return run.reason
        if task is not None and task.cancelling() == 0:
            log.error("the engine raised CancelledError")
            return EngineFailed(ENGINE_FAILURE)
        return asyncio.CancelledError()
