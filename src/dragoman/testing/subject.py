"""The engine under test, and the jobs that the checks run on it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias, TypeVar

import msgspec

from dragoman.engines import get_capabilities
from dragoman.types import DEFAULT_SAMPLING, Capabilities, Engine, Job, Json, Sampling, Step

T = TypeVar("T")
JobFactory: TypeAlias = Callable[[str], Job | Awaitable[Job]]
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small town by the sea, and in that town",
    "One, two, three, four, five,",
)


class CheckSkipped(Exception):
    """Raised by a check that does not apply."""


class EngineUnderTest:
    """An engine, and helpers to make and run jobs on it."""

    def __init__(
        self, engine: Engine, make_job: JobFactory | None, step_timeout: float, deterministic: bool
    ) -> None:
        self.engine = engine
        self.capabilities: Capabilities = get_capabilities(engine)
        self.step_timeout = step_timeout
        self.deterministic = deterministic
        self._job_factory = make_job
        self._number = 0

    async def make_job(self, text: str = PROMPTS[0], **changes: Json) -> Job:
        """Make a short greedy job; `changes` are fields of `Sampling` and of `Job`."""
        if self._job_factory is not None:
            created = self._job_factory(text)
            job = await created if inspect.isawaitable(created) else created
        else:
            sampling = DEFAULT_SAMPLING if self.capabilities.sampling_defaults else Sampling()
            job = Job(id="", prompt=await self.make_prompt(text), sampling=sampling)
        self._number += 1
        fields: dict[str, Json] = {"temperature": 0.0, "max_tokens": 8}
        fields |= {
            name: changes.pop(name) for name in tuple(changes) if name in Sampling.__struct_fields__
        }
        sampling = Sampling(**fields).with_defaults(job.sampling)
        return msgspec.structs.replace(
            job, id=f"check-{self._number}", sampling=sampling, **changes
        )

    async def make_prompt(self, text: str) -> list[int] | str:
        tokenize = getattr(self.engine, "tokenize", None)
        if not self.capabilities.token_prompts or tokenize is None:
            return text
        ids: list[int] = await tokenize(text, False)
        return ids

    async def collect(self, job: Job) -> list[Step]:
        """Run a job and return its steps; fail when the next one takes too long."""
        await self.wait(self.engine.admit(job), "`admit` did not return")
        steps: list[Step] = []
        async with aclosing(self.engine.generate(job)) as stream:
            while True:
                step = await self.read_step(stream)
                if step is None:
                    return steps
                steps.append(step)
                assert len(steps) < 10_000, "the job never ends, though `max_tokens` is small"

    async def read_step(self, stream: AsyncGenerator[Step, None]) -> Step | None:
        try:
            return await self.wait(anext(stream), "no step came and the job did not end")
        except StopAsyncIteration:
            return None

    async def wait(self, work: Awaitable[T], failure: str) -> T:
        try:
            async with asyncio.timeout(self.step_timeout):
                return await work
        except TimeoutError:
            raise AssertionError(f"{failure} within {self.step_timeout:g} s") from None


def get_output(steps: Sequence[Step], choice: int = 0) -> tuple[str, list[int]]:
    """Return the text and the ids of a choice."""
    own_steps = [step for step in steps if step.choice == choice]
    return "".join(step.text or "" for step in own_steps), [
        token for step in own_steps for token in step.ids
    ]


def count_tokens(steps: Sequence[Step], choice: int = 0) -> int:
    return sum(step.tokens for step in steps if step.choice == choice)


def get_finish(steps: Sequence[Step], choice: int = 0) -> str | None:
    reasons = [step.finish for step in steps if step.choice == choice and step.finish]
    return reasons[-1] if reasons else None


def get_prompt_tokens(steps: Sequence[Step]) -> int | None:
    return next((step.prompt_tokens for step in steps if step.prompt_tokens is not None), None)
