"""Several jobs as one stream of steps.

A completion over a list of prompts is several jobs whose steps come as they are made. Choices are
renumbered prompt by prompt, so that the reader of the stream sees one answer with many choices. One
job, the usual case, is handed through untouched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dragoman.engines.merge import merge_streams
from dragoman.types import Engine, Job, Step


def generate_merged(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[Step, None]:
    """Steps of all jobs; closing it closes every one of them."""
    if len(jobs) == 1:
        return engine.generate(jobs[0])
    return merge_streams([_renumber_choices(engine, job, at * job.n) for at, job in enumerate(jobs)])


@asynccontextmanager
async def close_at_end(steps: AsyncGenerator[Step, None]) -> AsyncGenerator[Any, None]:
    """Close an engine's stream at the end; one that is a bare iterator has nothing to close."""
    try:
        yield steps
    finally:
        close = getattr(steps, "aclose", None)
        if close is not None:
            await close()


async def _renumber_choices(engine: Engine, job: Job, first: int) -> AsyncGenerator[Step, None]:
    async with close_at_end(engine.generate(job)) as steps:
        async for step in steps:
            yield msgspec.structs.replace(step, choice=step.choice + first)
