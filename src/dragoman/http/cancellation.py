"""Everyone who is worked for, and how that work is interrupted.

From the moment a request is decoded it is watched: when the client leaves, or the server must stop,
the task that works for it is interrupted where it stands, and closing the pipeline cancels the
engine. Work that nobody waits for is watched too, so that the server knows of it when it stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from dragoman.errors import EngineFailed

log = logging.getLogger("dragoman.http")


class Disconnected(Exception):
    """The client has gone; there is nobody to answer."""


class ActiveRun:
    """Interrupts the task that works on a request, with a reason."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self.reason: Exception | None = None

    def interrupt(self, reason: Exception) -> None:
        if self.reason is None and self._task is not None:
            self.reason = reason
            self._task.cancel()

    def close(self) -> None:
        """The task goes on with what is not ours."""
        self._task = None


class RunRegistry:
    """All requests that are worked on."""

    def __init__(self) -> None:
        self._open: set[ActiveRun] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def interrupt_all(self, reason: Callable[[], Exception]) -> None:
        for watch in list(self._open):
            watch.interrupt(reason())

    @asynccontextmanager
    async def track(self, gone: Awaitable[None] | None) -> AsyncGenerator[ActiveRun, None]:
        """While this is open, the client's leaving ends the work with `Disconnected`."""
        watch = ActiveRun()
        waiting = None if gone is None else asyncio.ensure_future(gone)
        if waiting is not None:
            waiting.add_done_callback(
                lambda task: None if task.cancelled() else watch.interrupt(Disconnected())
            )
        self._open.add(watch)
        self._idle.clear()
        try:
            yield watch
        except asyncio.CancelledError:
            raise self._why(watch) from None
        finally:
            watch.close()
            if waiting is not None:
                waiting.cancel()
            self._open.discard(watch)
            if not self._open:
                self._idle.set()

    @staticmethod
    def _why(watch: ActiveRun) -> BaseException:
        """What a cancellation means: our own interruption, the server's, or an engine's mistake."""
        task = asyncio.current_task()
        if task is not None and watch.reason is not None and task.uncancel() == 0:
            return watch.reason
        if task is not None and task.cancelling() == 0:
            log.error("the engine was cancelled from inside")
            return EngineFailed("The engine failed while it worked on this request.")
        return asyncio.CancelledError()
