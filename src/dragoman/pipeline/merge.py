"""Runs several jobs as one stream of steps.

A completion over a list of prompts is several jobs that run at once. Their choices are renumbered
prompt by prompt, so the caller sees one answer with many choices. A single job, the usual case, is
passed through unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from dragoman.engines.adapter import get_engine_name
from dragoman.engines.invalid_steps import find_problem, reject
from dragoman.engines.merge import merge_streams
from dragoman.types import Engine, Job, Step


def start_job(engine: Engine, job: Job) -> AsyncGenerator[Step, None]:
    """Start a job; an engine whose `generate` yields nothing fails the request."""
    steps: object = engine.generate(job)
    if not isinstance(steps, AsyncIterable):
        close = getattr(steps, "close", None)
        if close is not None:  # a coroutine that nobody awaits
            close()
        reject(
            get_engine_name(engine),
            f"returned a {type(steps).__name__} from `generate`: write it as "
            "`async def generate(self, job)` with `yield`",
        )
    return cast("AsyncGenerator[Step, None]", steps)


def generate_merged(engine: Engine, jobs: Sequence[Job]) -> AsyncGenerator[Step, None]:
    """Yield the steps of all jobs; closing it closes every job."""
    if len(jobs) == 1:
        return start_job(engine, jobs[0])
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
    async with close_at_end(start_job(engine, job)) as steps:
        async for step in steps:
            if not isinstance(step, Step) or not 0 <= step.choice < job.n:
                reject(get_engine_name(engine), str(find_problem(step, job.n)))
            yield msgspec.structs.replace(step, choice=step.choice + first)
