"""Runs that resend the frames of a response, which is stored or still runs in the background.

A background response may run in this process (`FeedRun`) or in another one (`StoredRun`). These
runs generate nothing, and closing one does not affect the response.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from dragoman.errors import DragomanError, Draining
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols import responses
from dragoman.replay import PromptReuse
from dragoman.responses.feed import Feed
from dragoman.responses.response_run import ResponseRun
from dragoman.responses.run import Observe, Sink
from dragoman.store.rows import RUNNING, StoredResponse

if TYPE_CHECKING:
    from dragoman.store.store import Store

DRAIN_TIMEOUT = 2.0  # seconds to wait for the end of a response when the server stops
POLL_INTERVAL = 0.2  # seconds between reads of a response that another process runs


class ResumedRun:
    """Base class of these runs: by default there is nothing to start, report or close."""

    wants_stream = True
    warnings: tuple[str, ...] = ()
    reuse: PromptReuse | None = None  # no prompt is rendered

    def start(self) -> list[bytes]:
        return []

    async def stream(self, sink: Sink) -> None:
        raise NotImplementedError

    async def collect(self, observe: Observe) -> bytes:
        raise NotImplementedError

    async def fail(self, error: DragomanError) -> list[bytes]:
        return []  # the response itself did not fail; the client can resume it again

    def close(self) -> None:
        """There is nothing to close."""


class FeedRun(ResumedRun):
    """Follows a response that runs in this process."""

    def __init__(self, feed: Feed, after: int = -1) -> None:
        self._feed = feed
        self._last_sent = after

    async def stream(self, sink: Sink) -> None:
        async for frames in self._feed.follow(self._last_sent):
            for frame in frames:  # one at a time, to know which were sent if this is interrupted
                await await_delivery(sink.push([frame]))
                self._last_sent += 1

    async def fail(self, error: DragomanError) -> list[bytes]:
        """Return the frames that were not sent; if the server stops, wait for the last one."""
        if isinstance(error, Draining):
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_TIMEOUT):
                    await self._feed.wait_closed()
        return self._feed.frames[self._last_sent + 1 :]


class LaunchedRun(FeedRun):
    """A response that was just started in the background."""

    def __init__(self, feed: Feed, initial_body: bytes, run: ResponseRun) -> None:
        super().__init__(feed)
        self.wants_stream = run.wants_stream
        self.warnings = run.warnings
        self.reuse = run.reuse
        self._initial_body = initial_body

    async def collect(self, observe: Observe) -> bytes:
        return self._initial_body  # at once: the response continues in the background


class StoredRun(ResumedRun):
    """Sends a response from the store, which has ended or is run by another process."""

    def __init__(self, row: StoredResponse, store: Store, after: int = -1) -> None:
        self._row = row
        self._store = store
        self._last_sent = after

    async def stream(self, sink: Sink) -> None:
        if not self._row.background:
            frames = responses.encode_stored_events(self._row.body)
            # there are fewer events than in the original stream; the last one is always sent
            first = min(self._last_sent + 1, len(frames) - 1)
            await await_delivery(sink.push(frames[first:]))
            return
        ended = False
        while True:
            frames = await self._load_new_frames()
            if frames:
                await await_delivery(sink.push(frames))
            elif ended:
                break
            else:
                row = await self._load_row()
                ended = row is None or row.status not in RUNNING
                self._row = row or self._row
                if not ended:
                    await asyncio.sleep(POLL_INTERVAL)
        await await_delivery(sink.push(await self._make_missing_end()))

    async def _load_row(self) -> StoredResponse | None:
        owner, response = self._row.owner, self._row.id
        return await self._store.read(lambda tx: tx.responses.get(owner, response))

    async def _load_new_frames(self) -> list[bytes]:
        owner, response, after = self._row.owner, self._row.id, self._last_sent
        frames = await self._store.read(lambda tx: tx.responses.list_frames(owner, response, after))
        if frames:
            self._last_sent = frames[-1][0]
        return [data for _, data in frames]

    async def _make_missing_end(self) -> list[bytes]:
        """Return the final event of a response whose server died before it could write one."""
        owner, response = self._row.owner, self._row.id
        last = await self._store.read(lambda tx: tx.responses.get_last_frame(owner, response))
        number = -1 if last is None else last[0]
        has_end = last is not None and responses.is_final_event(last[1])
        if self._row.status in RUNNING or has_end or self._last_sent > number:
            return []
        return [responses.encode_final_event(self._row.body, number + 1)]
