"""Runs the jobs of a request as one stream of steps.

A completion over a list of prompts is several jobs. Their choices are renumbered prompt by prompt,
so the caller sees one answer with many choices. A `JobRunner` acquires slots for one job after the
other, so that a request of many prompts takes turns with other requests; as many jobs run at once
as it gets slots. A job of several choices that gets fewer slots is run in parts. A single job with
all its slots, the usual case, is passed through unchanged.

Invalid steps of engines are detected here without a cost for each token: the first step of each
choice is checked, and any other step only when reading it fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engines.adapter import get_engine_name, start_job
from dragoman.engines.invalid_steps import (
    INVALID_ANSWER,
    NO_FINISH,
    find_problem,
    log_problem,
    reject,
)
from dragoman.engines.merge import merge_streams
from dragoman.errors import ENGINE_ENDED_EARLY, EngineFailed
from dragoman.events import Delta
from dragoman.models.model import Model
from dragoman.pipeline.admission import SlotClaim, Ticket
from dragoman.pipeline.plan import estimate_tokens
from dragoman.telemetry.record import ChoiceCounts
from dragoman.types import Engine, Job, Step

Feed: TypeAlias = Callable[[Step], list[Delta]]  # of the reader of a choice
# raised when a step is not what an engine must yield
STEP_ERRORS = (EngineFailed, AttributeError, TypeError, ValueError, LookupError)


class PendingJob(Struct, frozen=True):
    """A job of which some choices have not started."""

    job: Job
    first: int  # the number of the job's first choice in the answer
    started: int = 0  # choices

    @property
    def remaining(self) -> int:
        return self.job.n - self.started

    def make_part(self, count: int) -> Job:
        """Make a job of the next choices."""
        job, started = self.job, self.started
        if count == job.n:
            return job
        seed = job.sampling.seed
        sampling = replace(job.sampling, seed=None if seed is None else seed + started)
        job_id = f"{job.id}-n{started}" if started else job.id
        return replace(job, id=job_id, n=count, sampling=sampling)


class RunningPart(Struct, frozen=True):
    """A job, or a part of one, that holds slots."""

    job: Job
    first: int  # the number of its first choice in the answer
    claim: SlotClaim
    choices: Sequence[ChoiceCounts]
    reports_prompt: bool  # counts the prompt: another part of the same job does not


class JobRunner:
    """Runs the jobs of a request on the slots that it gets."""

    def __init__(
        self, engine: Engine, jobs: Sequence[Job], ticket: Ticket, choices: Sequence[ChoiceCounts]
    ) -> None:
        self._engine = engine
        self._ticket = ticket
        self._choices = choices
        self._pending: deque[PendingJob] = deque()
        for job in jobs:
            first = self._pending[-1].first + self._pending[-1].job.n if self._pending else 0
            self._pending.append(PendingJob(job, first))
        # One more than there are slots, so that the next job waits for its turn while others run.
        self._lanes = min(len(choices), (ticket.slots or len(choices)) + 1)
        # the remaining choices of such a job must be known before the next acquires slots
        has_parts = len(choices) > len(jobs)
        self._max_acquiring = 1 if has_parts else self._lanes
        self._acquiring: asyncio.Semaphore | None = None
        self._first: RunningPart | None = None

    async def acquire_first(self) -> None:
        """Wait until the request may start; nothing else acquires slots for it before."""
        self._first = await self._acquire_next()

    async def _acquire_in_turn(self) -> RunningPart | None:
        """Wait for slots for the next choices, after earlier callers of this method."""
        if self._acquiring is None:
            self._acquiring = asyncio.Semaphore(self._max_acquiring)
        async with self._acquiring:
            return await self._acquire_next()

    async def _acquire_next(self) -> RunningPart | None:
        """Wait for slots for the next choices; None if there are no more choices."""
        if not self._pending:
            return None
        pending = self._pending.popleft()
        job, sampling = pending.job, pending.job.sampling
        tokens = estimate_tokens(job.prompt)
        remaining = pending.remaining
        claim = await self._ticket.acquire(remaining, tokens, sampling.max_tokens)
        if claim.slots < remaining:
            rest = replace(pending, started=pending.started + claim.slots)
            self._pending.appendleft(rest)
        first = pending.first + pending.started
        choices = self._choices[first : first + claim.slots]
        probed = tokens if job.prompt_logprobs is not None else 0  # token by token
        claim.count_generated = lambda: probed + sum(choice.completion_tokens for choice in choices)
        return RunningPart(
            pending.make_part(claim.slots), first, claim, choices, not pending.started
        )

    def get_single_job(self) -> Job | None:
        """Return the job that makes the whole answer, if there is one."""
        first = self._first
        return None if first is None or first.job.n != len(self._choices) else first.job

    def generate(self) -> AsyncGenerator[Step, None]:
        """Yield the steps of all jobs; closing it closes every job."""
        first, single = self._first, self.get_single_job()
        if single is not None:
            return start_job(self._engine, single)
        others = [None] * (self._lanes - 1)
        return merge_streams([self._run_parts(first), *map(self._run_parts, others)])

    async def _run_parts(self, part: RunningPart | None) -> AsyncGenerator[Step, None]:
        """Run one part after the other while there are some."""
        while part is not None or (part := await self._acquire_in_turn()) is not None:
            async with self._start_part(part) as steps:
                async for step in steps:
                    yield self._renumber_choice(step, part)
                    if all(choice.is_finished for choice in part.choices):
                        break  # its text ended at a stop string
            part = None

    @asynccontextmanager
    async def _start_part(self, part: RunningPart) -> AsyncGenerator[AsyncIterable[Step], None]:
        """Start a part; at the end, close it and return its slots."""
        try:
            async with close_at_end(start_job(self._engine, part.job)) as steps:
                yield steps
        finally:
            self._ticket.free(part.claim)

    def _renumber_choice(self, step: Step, part: RunningPart) -> Step:
        if not isinstance(step, Step) or not 0 <= step.choice < part.job.n:
            reject(get_engine_name(self._engine), str(find_problem(step, part.job.n)))
        if step.prompt_tokens is not None or step.cached_tokens:
            self._count_prompt(step, part.claim)
            if not part.reports_prompt:
                step = replace(step, prompt_tokens=None, cached_tokens=None)
        return replace(step, choice=step.choice + part.first)

    def count_prompt(self, step: Step) -> None:
        """Count the prompt of a single job, as the engine reports it in a step."""
        if self._first is not None:
            self._count_prompt(step, self._first.claim)

    @staticmethod
    def _count_prompt(step: Step, claim: SlotClaim) -> None:
        """Update the claim's prompt counts; engines may report cached tokens in a later step."""
        prompt, cached = step.prompt_tokens or 0, step.cached_tokens or 0
        if not (isinstance(prompt, int) and isinstance(cached, int)) or min(prompt, cached) < 0:
            return  # the reader rejects it
        claim.prompt_tokens = prompt or claim.prompt_tokens
        claim.cached_tokens = cached or claim.cached_tokens


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
    raise EngineFailed(ENGINE_ENDED_EARLY)
