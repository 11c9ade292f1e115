"""Answers that report the progress of a change, such as a download.

The work calls `report` with one line after the other, from any thread, and returns the last line. A
client that wants a stream gets all of them, any other client the last. Disconnecting cancels the
work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from dragoman.errors import DragomanError
from dragoman.pipeline.pipeline import await_delivery
from dragoman.protocols.dialect import Dialect
from dragoman.protocols.json_lines import make_line
from dragoman.replay import PromptReuse
from dragoman.responses.run import Observe, Sink

Report: TypeAlias = Callable[[bytes], None]  # takes an encoded line, without its end
Work: TypeAlias = Callable[[Report], Coroutine[Any, Any, bytes]]
MAX_WAITING = 1000  # lines that a slow client has not read; it misses the oldest


class ProgressRun:
    """A change that is ready to be made."""

    def __init__(self, work: Work, dialect: Dialect[object], *, streams: bool) -> None:
        self.wants_stream = streams
        self._work = work
        self._dialect = dialect

    @property
    def warnings(self) -> tuple[str, ...]:
        return ()

    @property
    def reuse(self) -> PromptReuse | None:
        return None

    def start(self) -> list[bytes]:
        return []

    async def stream(self, sink: Sink) -> None:
        loop = asyncio.get_running_loop()
        lines: deque[bytes] = deque(maxlen=MAX_WAITING)
        has_news = asyncio.Event()

        def add(line: bytes) -> None:
            lines.append(make_line(line))
            has_news.set()

        def report(line: bytes) -> None:
            loop.call_soon_threadsafe(add, line)

        task = asyncio.create_task(self._work(report))
        task.add_done_callback(lambda _: has_news.set())
        try:
            while lines or not task.done():
                await has_news.wait()
                has_news.clear()
                while lines:
                    await await_delivery(sink.push([lines.popleft()]))
            await await_delivery(sink.push([make_line(task.result())]))
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def collect(self, observe: Observe) -> bytes:
        return await self._work(lambda line: None)

    async def fail(self, error: DragomanError) -> list[bytes]:
        return [make_line(self._dialect.encode_error(error, ""))]

    def close(self) -> None: ...
