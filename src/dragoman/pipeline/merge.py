"""Runs several jobs as one stream of steps.

A completion over a list of prompts is several jobs that run at once. Their choices are renumbered
prompt by prompt, so the caller sees one answer with many choices. A single job, the usual case, is
passed through unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from dragoman.engines.merge import merge_streams
from dragoman.types import Engine, Job, Step


def generate_merged(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[Step, None]:
    """Yield the steps of all jobs; closing it closes every job."""
    if len(jobs) == 1:
        return engine.generate(jobs[0])
    return merge_streams(
        [_renumber_choices(engine, job, index * job.n) for index, job in enumerate(jobs)]
    )


@asynccontextmanager
async def close_at_end(
    steps: AsyncGenerator[Step, None],
) -> AsyncGenerator[AsyncIterable[Step], None]:
    """Close an engine's stream at the end. A bare iterator has nothing to close."""
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
