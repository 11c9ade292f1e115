"""Responses that run on when nobody waits for them.

Each has a `Feed`. One task looks after all of them: it puts new frames into the store a few times a
second, so that another process can tell them too, and sees whether one is to be cancelled from
there. A response that ends is put into the store with its last frames before its feed tells them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import DragomanError, Draining, EngineFailed, TooLarge, Unavailable
from dragoman.events import Delta
from dragoman.protocols import responses
from dragoman.responses.feed import Feed
from dragoman.responses.response_run import Cancelled, ResponseRun
from dragoman.responses.run import Sink
from dragoman.store.rows import StoredItem, StoredResponse

if TYPE_CHECKING:
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.turns")
EVERY = 0.25  # seconds between two visits to the store


class Interruptible(Protocol):
    """Somebody at work, who can be stopped."""

    def interrupt(self, reason: Exception) -> None: ...


Watching = Callable[[], AbstractAsyncContextManager[Interruptible]]


class BackgroundRun:
    """A response at work."""

    def __init__(self, turn: ResponseRun) -> None:
        self.run = turn
        self.feed = Feed()
        self.flushed = 0  # frames that are in the store
        self.feed.push(turn.encoder.queue())
        self.initial_body = turn.encode_whole()  # the response before anything came of it
        self.watch: Interruptible | None = None
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        if self.watch is not None and not self.run.encoder.is_over:
            self.watch.interrupt(Cancelled("The response was cancelled."))

    async def flush(self, store: Store) -> None:
        """Put new frames into the store."""
        response, fresh = self.run.id, self.fresh()
        if fresh:
            await store.write(lambda tx: tx.responses.append_frames(response, fresh))
            self.flushed = max(self.flushed, fresh[-1][0] + 1)

    def fresh(self) -> list[tuple[int, bytes]]:
        """Frames that are not in the store yet, with their numbers."""
        frames = self.feed.frames
        return list(enumerate(frames[self.flushed :], self.flushed))


class FinishedResponse(Struct, frozen=True):
    """The end of a response, as it goes to the store."""

    row: StoredResponse
    items: Sequence[StoredItem] = ()
    frames: Sequence[tuple[int, bytes]] = ()

    async def write(self, store: Store) -> None:
        await store.write(lambda tx: tx.finish_response(self.row, self.items, self.frames))


class BackgroundRuns:
    """All responses of this process that run on by themselves."""

    def __init__(
        self,
        watching: Watching,
        note: Callable[[], Callable[[Delta], None]],
        failed: Callable[[DragomanError], None],
    ) -> None:
        self._watching = watching
        self._note = note
        self._failed = failed  # is told of what nobody else hears of
        self._running: dict[str, BackgroundRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._tending: asyncio.Task[None] | None = None
        self._late: list[FinishedResponse] = []  # that the store could not take when they came

    def find(self, owner: str, name: str) -> BackgroundRun | None:
        found = self._running.get(name)
        return found if found is not None and found.run.owner == owner else None

    async def start(self, turn: ResponseRun, store: Store) -> BackgroundRun:
        """Let a response run; it is in the store when this returns.

        Whoever leaves meanwhile does not keep it from running.
        """
        running = BackgroundRun(turn)
        launching = asyncio.create_task(self._launch(running, store))
        self._tasks.add(launching)
        launching.add_done_callback(self._tasks.discard)
        await asyncio.shield(launching)
        return running

    async def _launch(self, running: BackgroundRun, store: Store) -> None:
        turn = running.run
        try:
            row = turn.make_row()
            await store.write(lambda tx: tx.add_response(row))
        except BaseException:
            turn.close()
            raise
        turn.save = lambda frames: self._keep(running, store, frames)
        self._running[turn.id] = running
        task = asyncio.create_task(self._run(running, store))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._tending is None or self._tending.done():
            self._tending = asyncio.create_task(self._tend(store))

    async def _run(self, running: BackgroundRun, store: Store) -> None:
        turn, feed = running.run, running.feed
        try:
            async with self._watching() as running.watch:
                if running.cancelled:
                    raise Cancelled("The response was cancelled.")
                feed.push(turn.start())
                with suppress(Unavailable):  # its end will be kept, or it will be found dead
                    row = turn.make_row()
                    await store.write(
                        lambda tx: tx.responses.update(row.owner, row.id, "in_progress", row.body)
                    )
                await turn.stream(Sink(self._note(), feed.push))
        except DragomanError as error:
            await self._fail(running, error)
        except asyncio.CancelledError:
            await self._fail(running, Draining("The server stopped before the answer was done."))
            raise
        except Exception:
            log.exception("response %s broke", turn.id)
            await self._fail(running, EngineFailed("The engine failed while it worked on this."))
        finally:
            turn.close()
            feed.close()
            self._running.pop(turn.id, None)

    async def _fail(self, running: BackgroundRun, error: DragomanError) -> None:
        if not running.run.encoder.is_over and not isinstance(error, Cancelled):
            self._failed(error)
        try:
            running.feed.push(await running.run.fail(error))
        except DragomanError as lost:
            log.error("response %s could not be kept: %s", running.run.id, lost.message)

    async def _keep(self, running: BackgroundRun, store: Store, frames: list[bytes]) -> None:
        """Whoever sees the end in the store finds all frames there."""
        turn, last = running.run, list(enumerate(frames, len(running.feed.frames)))
        row = turn.make_row()
        ending = FinishedResponse(row, turn.stored_items, [*running.fresh(), *last])
        try:
            await ending.write(store)
        except TooLarge as error:
            log.error("response %s is lost: %s", row.id, error.message)
            lost = replace(row, status="failed", body=responses.mark_failed(running.initial_body))
            await FinishedResponse(lost).write(store)
        except Unavailable:
            self._late.append(ending)

    async def _tend(self, store: Store) -> None:
        while self._running or self._late:
            await asyncio.sleep(EVERY)
            try:
                await self._visit(store)
            except DragomanError as error:
                log.warning("the store did not take what runs in the background: %s", error.message)

    async def _visit(self, store: Store) -> None:
        for run in list(self._running.values()):
            await run.flush(store)
        while self._late:
            await self._late[0].write(store)
            self._late.pop(0)
        running = list(self._running)
        for name in await store.read(lambda tx: tx.responses.list_cancel_requests(running)):
            if name in self._running:
                self._running[name].cancel()

    async def aclose(self) -> None:
        """End what still runs."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tending is not None:
            self._tending.cancel()
        for ending in self._late:
            log.error("response %s could not be kept", ending.row.id)
