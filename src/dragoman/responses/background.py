"""Responses that run in the background, without a client.

Each has a `Feed`. One task serves all of them: a few times a second it writes new frames to the
store, so that other processes can send them, too, and checks whether a client of another process
asked to cancel a response. When a response ends, its final state and last frames are stored before
they are pushed to its feed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import (
    DragomanError,
    Draining,
    ResponseCancelled,
    TooLarge,
    Unavailable,
    convert_engine_exception,
)
from dragoman.protocols import responses
from dragoman.responses.feed import Feed
from dragoman.responses.response_run import ResponseRun
from dragoman.responses.run import Observe, Sink
from dragoman.store.rows import StoredItem, StoredResponse
from dragoman.telemetry.record import RequestRecord, get_record
from dragoman.types.detached_task import start_detached

if TYPE_CHECKING:
    from dragoman.store.store import Store

log = logging.getLogger("dragoman.responses")
OK = 200  # the HTTP status of a response that did not fail, for the log
SYNC_INTERVAL = 0.25  # seconds between two exchanges with the store


class Interruptible(Protocol):
    """A tracked run, which can be stopped from outside."""

    def interrupt(self, reason: Exception) -> None: ...


TrackRun: TypeAlias = Callable[[], AbstractContextManager[Interruptible]]


class BackgroundRun:
    """One response that is running in the background."""

    def __init__(self, run: ResponseRun) -> None:
        self.run = run
        self.feed = Feed()
        self.feed.push(run.encoder.queue())
        self.initial_body = run.encode_whole()  # before anything is generated
        self.tracked: Interruptible | None = None
        self.is_cancelled = False
        self._stored_frames = 0
        self._stores_frames = True  # before the end

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.tracked is not None and not self.run.encoder.is_over:
            self.tracked.interrupt(ResponseCancelled("The response was cancelled."))

    async def store_frames(self, store: Store) -> None:
        """Write new frames to the store, until it refuses some: it would do so again."""
        response, frames = self.run.id, self.list_unstored_frames()
        if not (frames and self._stores_frames):
            return
        try:
            await store.write(lambda tx: tx.responses.append_frames(response, frames))
        except Unavailable:
            raise
        except DragomanError as error:
            self._stores_frames = False
            log.error("events of response %s could not be stored: %s", response, error.message)
        else:
            self._stored_frames = max(self._stored_frames, frames[-1][0] + 1)

    def list_unstored_frames(self) -> list[tuple[int, bytes]]:
        """Return frames that are not in the store yet, with their numbers."""
        first = self._stored_frames
        return list(enumerate(self.feed.frames[first:], first))


class FinishedResponse(Struct, frozen=True):
    """The final state of a response, as it is stored."""

    row: StoredResponse
    items: Sequence[StoredItem]
    frames: Sequence[tuple[int, bytes]]
    initial_body: bytes  # before anything was generated

    async def save(self, store: Store) -> None:
        """Store it; if it is too large for the store, store that it failed."""
        try:
            await store.write(lambda tx: tx.finish_response(self.row, self.items, self.frames))
        except TooLarge as error:
            log.error("response %s could not be stored: %s", self.row.id, error.message)
            body = responses.mark_failed(self.initial_body)
            failed = replace(self.row, status="failed", body=body)
            await store.write(lambda tx: tx.finish_response(failed, (), ()))


class BackgroundRuns:
    """All background responses of this process."""

    def __init__(
        self,
        track_run: TrackRun,
        make_observer: Callable[[], Observe],
        report_failure: Callable[[DragomanError], None],
        observe: Callable[[], AbstractContextManager[RequestRecord]],
    ) -> None:
        self._track_run = track_run
        self._make_observer = make_observer
        self._observe = observe
        self._report_failure = report_failure  # no client sees the errors of these runs
        self._running: dict[str, BackgroundRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._syncing: asyncio.Task[None] | None = None
        self._unsaved: list[FinishedResponse] = []  # the store was unavailable when they ended

    def find(self, owner: str, response: str) -> BackgroundRun | None:
        background = self._running.get(response)
        return background if background is not None and background.run.owner == owner else None

    async def start(self, run: ResponseRun, store: Store) -> BackgroundRun:
        """Start a response; it is in the store when this returns.

        Cancelling the caller does not keep the response from running.
        """
        background = BackgroundRun(run)
        starting = asyncio.create_task(self._start(background, store))
        self._tasks.add(starting)
        starting.add_done_callback(self._tasks.discard)
        await asyncio.shield(starting)
        return background

    async def _start(self, background: BackgroundRun, store: Store) -> None:
        run = background.run
        try:
            row = run.make_row()
            await store.write(lambda tx: tx.add_response(row))
        except BaseException:
            run.close()
            raise
        run.save = lambda frames: self._save(background, store, frames)
        self._running[run.id] = background
        task = asyncio.create_task(self._run(background, store))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._syncing is None or self._syncing.done():
            self._syncing = start_detached(self._sync_periodically(store))

    async def _run(self, background: BackgroundRun, store: Store) -> None:
        with self._observe() as record:
            await self._generate(background, store)
            record.status = record.status or OK

    async def _generate(self, background: BackgroundRun, store: Store) -> None:
        """Generate the answer into the feed; any failure becomes the end of the response."""
        run, feed = background.run, background.feed
        try:
            with self._track_run() as background.tracked:
                if background.is_cancelled:
                    raise ResponseCancelled("The response was cancelled.")
                feed.push(run.start())
                # not essential: the end is stored, too, or maintenance marks it as failed
                with suppress(Unavailable):
                    row = run.make_row()
                    await store.write(
                        lambda tx: tx.responses.update(row.owner, row.id, "in_progress", row.body)
                    )
                await run.stream(Sink(self._make_observer(), feed.push))
        except DragomanError as error:
            await self._fail(background, error)
        except asyncio.CancelledError:
            await self._fail(background, Draining("The server stopped before the answer ended."))
            raise
        except Exception as error:
            log.exception("response %s failed", run.id)
            await self._fail(background, convert_engine_exception(error))
        finally:
            run.close()
            feed.close()
            self._running.pop(run.id, None)

    async def _fail(self, background: BackgroundRun, error: DragomanError) -> None:
        if not background.run.encoder.is_over:
            get_record().set_error(error)
            if not isinstance(error, ResponseCancelled):
                self._report_failure(error)
        try:
            background.feed.push(await background.run.fail(error))
        except DragomanError as store_error:
            log.error("response %s could not be stored: %s", background.run.id, store_error.message)

    async def _save(self, background: BackgroundRun, store: Store, frames: list[bytes]) -> None:
        """Store the end of a response with all its frames."""
        run, last = background.run, list(enumerate(frames, len(background.feed.frames)))
        finished = FinishedResponse(
            run.make_row(),
            run.stored_items,
            [*background.list_unstored_frames(), *last],
            background.initial_body,
        )
        try:
            await finished.save(store)
        except Unavailable:
            self._unsaved.append(finished)

    async def _sync_periodically(self, store: Store) -> None:
        while self._running or self._unsaved:
            await asyncio.sleep(SYNC_INTERVAL)
            try:
                await self._sync(store)
            except DragomanError as error:
                log.warning("cannot store background responses, trying again: %s", error.message)

    async def _sync(self, store: Store) -> None:
        """Exchange with the store: write frames and unsaved ends, and read cancel requests."""
        for background in list(self._running.values()):
            await background.store_frames(store)
        while self._unsaved:
            finished = self._unsaved[0]
            try:
                await finished.save(store)
            except Unavailable:
                raise
            except DragomanError as error:  # it would fail again
                log.error("response %s could not be stored: %s", finished.row.id, error.message)
            self._unsaved.pop(0)
        running = list(self._running)
        for response in await store.read(lambda tx: tx.responses.list_cancel_requests(running)):
            if response in self._running:
                self._running[response].cancel()

    async def aclose(self) -> None:
        """Cancel what is still running."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._syncing is not None:
            self._syncing.cancel()
        for finished in self._unsaved:
            log.error("response %s could not be stored", finished.row.id)
