"""Merges several streams of steps into one, in the order in which the steps arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from dragoman.engines.step_queue import StepQueue
from dragoman.errors import DragomanError, deserialize_error, serialize_error
from dragoman.types import Step

log = logging.getLogger("dragoman.engines")


async def merge_streams(
    streams: Sequence[AsyncGenerator[Step, None]],
) -> AsyncGenerator[Step, None]:
    """Yield the steps of all streams. Closing this one, or the first failure, closes them all."""
    queue = StepQueue()
    open_streams = len(streams)

    async def forward(stream: AsyncGenerator[Step, None]) -> None:
        async with aclosing(stream):
            async for step in stream:
                queue.put([step])

    def end_stream(task: asyncio.Task[None]) -> None:
        nonlocal open_streams
        open_streams -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if not isinstance(error, DragomanError):
                log.error("the engine raised an exception", exc_info=error)
            queue.end(deserialize_error(serialize_error(error)))
        elif not open_streams:
            queue.end()

    tasks = [asyncio.create_task(forward(stream)) for stream in streams]
    for task in tasks:
        task.add_done_callback(end_stream)
    try:
        while tasks and (steps := await queue.take()):
            for step in steps:
                yield step
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
