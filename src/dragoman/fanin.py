"""Several jobs as one stream of steps.

A completion over a list of prompts is several jobs whose steps come as they are made. Choices are
renumbered prompt by prompt, so that the reader of the stream sees one answer with many choices. One
job, the usual case, is handed through untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from dragoman.types import Engine, Job, Step


def run_together(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[Step, None]:
    """Steps of all jobs; closing it closes every one of them."""
    return engine.generate(jobs[0]) if len(jobs) == 1 else _merge(engine, jobs)


async def _merge(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[Step, None]:
    ready: list[Step] = []
    wake = asyncio.Event()

    async def pump(number: int, job: Job) -> None:
        async with aclosing(engine.generate(job)) as steps:
            async for step in steps:
                ready.append(msgspec.structs.replace(step, choice=step.choice + number * job.n))
                wake.set()

    tasks = [asyncio.create_task(pump(at, job)) for at, job in enumerate(jobs)]
    for task in tasks:
        task.add_done_callback(lambda _: wake.set())
    try:
        while True:
            await wake.wait()
            wake.clear()
            batch, ready[:] = list(ready), []
            for step in batch:
                yield step
            for task in tasks:
                if task.done():
                    task.result()
            if not ready and all(task.done() for task in tasks):
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
