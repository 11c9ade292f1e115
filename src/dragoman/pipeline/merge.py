"""Runs several jobs as one stream of steps.

A completion over a list of prompts is several jobs that run at once. Their choices are renumbered
prompt by prompt, so the caller sees one answer with many choices. A single job, the usual case, is
passed through unchanged.

Engines that break the contract are found here without a cost for each token: the first step of each
choice is checked, and any other step only when reading it fails.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn, TypeAlias

import msgspec

from dragoman.engines.adapter import get_engine_name, start_job
from dragoman.engines.invalid_steps import (
    INVALID_ANSWER,
    NO_FINISH,
    find_problem,
    log_problem,
    reject,
)
from dragoman.engines.merge import merge_streams
from dragoman.errors import EngineFailed
from dragoman.events import Delta
from dragoman.models.model import Model
from dragoman.types import Engine, Job, Step

Feed: TypeAlias = Callable[[Step], list[Delta]]  # of the reader of a choice
# raised when a step is not what an engine must yield
STEP_ERRORS = (EngineFailed, AttributeError, TypeError, ValueError, LookupError)


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


def check_first_steps(feeds: list[Feed], model: Model) -> None:
    """Make each function check the first step that it gets, and replace itself in the list."""

    def add_check(index: int, feed: Feed) -> Feed:
        def feed_first(step: Step) -> list[Delta]:
            problem = _find_problem(step, model, len(feeds))
            if problem is not None:
                raise EngineFailed(INVALID_ANSWER)
            feeds[index] = feed
            return feed(step)

        return feed_first

    feeds[:] = [add_check(index, feed) for index, feed in enumerate(feeds)]


def _find_problem(step: Step, model: Model, choices: int) -> str | None:
    vocabulary = 0 if model.tokenizer is None else len(model.tokenizer.pieces)
    return find_problem(step, choices, vocabulary)


def explain_step_error(error: Exception, model: Model, step: Step, choices: int) -> None:
    """If a step is invalid, log what is wrong with it, and blame the engine."""
    problem = _find_problem(step, model, choices)
    if problem is not None:
        log_problem(get_engine_name(model.engine), problem)
        if not isinstance(error, EngineFailed):
            raise EngineFailed(INVALID_ANSWER) from None


def reject_missing_finish(model: Model) -> NoReturn:
    """Fail a request whose engine ended before all choices were finished."""
    log_problem(get_engine_name(model.engine), NO_FINISH)
    raise EngineFailed("The engine stopped before the answer was finished.")
