"""Several streams of steps as one, in the order the steps come."""

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
    """Steps of all streams. Closing it closes every one; the first failure ends them all."""
    mailbox = StepQueue()
    left = len(streams)

    async def pump(stream: AsyncGenerator[Step, None]) -> None:
        async with aclosing(stream):
            async for step in stream:
                mailbox.put([step])

    def ended(task: asyncio.Task[None]) -> None:
        nonlocal left
        left -= 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            if not isinstance(error, DragomanError):
                log.error("the engine broke", exc_info=error)
            mailbox.end(deserialize_error(serialize_error(error)))
        elif not left:
            mailbox.end()

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        while tasks and (steps := await mailbox.take()):
            for step in steps:
                yield step
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
