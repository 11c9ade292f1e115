"""Hearing a response that is not one's own to run: in the background here, elsewhere, or long over.

All of them are pieces of work that only tell. Closing one ends nothing but the telling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, Draining
from dragoman.events import Delta
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols import responses
from dragoman.replay import PromptReuse
from dragoman.responses.feed import Feed
from dragoman.responses.response_run import ResponseRun
from dragoman.responses.run import Sink
from dragoman.store.rows import RUNNING, StoredResponse

if TYPE_CHECKING:
    from dragoman.store.store import Store

ENDING = 2.0  # seconds for a response that is stopped, until its listeners hear of it
LOOK = 0.2  # seconds between two looks at a response that another process runs


class ResumedRun:
    """What all of them have in common."""

    wants_stream = True
    warnings: tuple[str, ...] = ()
    reuse: PromptReuse | None = None  # no prompt is made for it

    def start(self) -> list[bytes]:
        return []

    async def stream(self, sink: Sink) -> None:
        raise NotImplementedError

    async def collect(self, note: Callable[[Delta], None]) -> bytes:
        raise NotImplementedError

    async def fail(self, error: DragomanError) -> list[bytes]:
        return []  # the response itself did not fail; whoever comes again hears the rest

    def close(self) -> None:
        """There is nothing to close."""


class FeedRun(ResumedRun):
    """A response that runs in this process."""

    def __init__(self, feed: Feed, after: int = -1) -> None:
        self._feed = feed
        self._at = after  # the frame that was told last

    async def stream(self, sink: Sink) -> None:
        async for frames in self._feed.follow(self._at):
            for frame in frames:  # one by one, to know which were told when this is interrupted
                await await_delivery(sink.push([frame]))
                self._at += 1

    async def fail(self, error: DragomanError) -> list[bytes]:
        """The rest. A server that stops ends the response as well, which is told."""
        if isinstance(error, Draining):
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING):
                    await self._feed.wait_closed()
        return self._feed.frames[self._at + 1 :]


class LaunchedRun(FeedRun):
    """One that was just sent into the background; who does not listen is told of it as it is."""

    def __init__(self, feed: Feed, begun: bytes, turn: ResponseRun) -> None:
        super().__init__(feed)
        self.wants_stream = turn.wants_stream
        self.warnings = turn.warnings
        self.reuse = turn.reuse
        self._body = begun

    async def collect(self, note: Callable[[Delta], None]) -> bytes:
        return self._body  # at once: the response goes on in the background


class StoredRun(ResumedRun):
    """A response of the store: over, or run by another process."""

    def __init__(self, row: StoredResponse, store: Store, after: int = -1) -> None:
        self._row = row
        self._store = store
        self._at = after

    async def stream(self, sink: Sink) -> None:
        if not self._row.background:
            frames = responses.encode_stored_events(self._row.body)
            heard = min(self._at + 1, len(frames) - 1)  # a replay has fewer; its end is always told
            await await_delivery(sink.push(frames[heard:]))
            return
        ended = False
        while True:
            frames = await self._more()
            if frames:
                await await_delivery(sink.push(frames))
            elif ended:
                break
            else:
                row = await self._load_row()
                ended = row is None or row.status not in RUNNING
                self._row = row or self._row
                if not ended:
                    await asyncio.sleep(LOOK)
        await await_delivery(sink.push(await self._ending()))

    async def _load_row(self) -> StoredResponse | None:
        owner, name = self._row.owner, self._row.id
        return await self._store.read(lambda tx: tx.responses.get(owner, name))

    async def _more(self) -> list[bytes]:
        """Frames that were not told yet."""
        owner, name, after = self._row.owner, self._row.id, self._at
        found = await self._store.read(lambda tx: tx.responses.list_frames(owner, name, after))
        if found:
            self._at = found[-1][0]
        return [data for _, data in found]

    async def _ending(self) -> list[bytes]:
        """The last event of a response whose server died before it could tell it."""
        owner, name = self._row.owner, self._row.id
        last = await self._store.read(lambda tx: tx.responses.get_last_frame(owner, name))
        number = -1 if last is None else last[0]
        told = last is not None and responses.is_final_event(last[1])
        if self._row.status in RUNNING or told or self._at > number:
            return []
        return [responses.encode_final_event(self._row.body, number + 1)]
