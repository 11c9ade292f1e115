"""Calls of engines that run in this process, which fail if the engine hangs.

Engines in child processes are watched where they are supervised, see `engines.subprocess`.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
)
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TypeAlias

from dragoman.engines.in_process_watch import GeneratedSteps
from dragoman.engines.step_queue import StepConsumer
from dragoman.engines.subprocess.progress import CallKind, count_tokens
from dragoman.models.model import Model
from dragoman.pipeline.answer import AnswerReader
from dragoman.pipeline.merge import close_at_end
from dragoman.pipeline.plan import Plan
from dragoman.types import Job, Step

# Runs a job and calls a consumer with its steps.
DeliverSteps: TypeAlias = Callable[[Job, StepConsumer], Awaitable[None]]
StartJobs: TypeAlias = Callable[[], AsyncGenerator[Step, None]]


def watch_call(model: Model, kind: CallKind, size: int) -> AbstractContextManager[None]:
    """Watch a call inside this block; `size` is how many tokens it must process."""
    return nullcontext() if model.watch is None else model.watch.watch(kind, size)


class StartedCall:
    """The rest of a call that has started and waits for `pending`."""

    __slots__ = ("_call", "_pending")

    def __init__(self, call: Coroutine[object, object, None], pending: object) -> None:
        self._call = call
        self._pending = pending

    def __await__(self) -> Generator[object, object, None]:
        pending = self._pending
        while True:
            try:
                try:
                    result = yield pending
                except GeneratorExit:
                    self._call.close()
                    raise
                except BaseException as error:
                    pending = self._call.throw(error)
                else:
                    pending = self._call.send(result)
            except StopIteration:
                return


def start_call(call: Coroutine[object, object, None]) -> StartedCall | None:
    """Start a call; return what is left to await, or None if it has ended without waiting."""
    try:
        return StartedCall(call, call.send(None))
    except StopIteration:
        return None


async def admit(job: Job, model: Model) -> None:
    """Ask the engine whether it accepts a job; raise its error if not."""
    rest = start_call(model.engine.admit(job))
    if rest is not None:  # else it has ended, and nothing is left to watch
        with watch_call(model, "admit", count_tokens(job.prompt)):
            await rest


async def deliver_steps(deliver: DeliverSteps, job: Job, plan: Plan, answer: AnswerReader) -> None:
    """Run a job on the engine, which calls the reader of the answer with its steps."""
    watch = plan.model.watch
    if watch is None:
        await deliver(job, answer)
        return
    with watch.watch("generate", count_work(plan), job, answer):
        await deliver(job, answer)


@asynccontextmanager
async def open_steps(
    steps: AsyncGenerator[Step, None], plan: Plan
) -> AsyncGenerator[AsyncIterable[Step], None]:
    """Watch the steps of a plan's jobs, and close them at the end.

    An engine may compute the whole answer before it yields anything.
    """
    async with close_at_end(steps) as source:
        watch = plan.model.watch
        if watch is None:
            yield source
            return
        generated = GeneratedSteps(source, plan.count_used_tokens)
        with watch.watch("generate", count_work(plan), plan.jobs[0], generated):
            yield source


async def read_steps(start: StartJobs, plan: Plan, answer: AnswerReader) -> None:
    """Start the jobs, read the steps that the engine yields, and close them at the end."""
    async with open_steps(start(), plan) as watched:
        await answer.read(watched)


def count_work(plan: Plan) -> int:
    """Return how many tokens the jobs of a plan may process."""
    answer = plan.max_answer_tokens or plan.model.capabilities.context or 0
    return plan.estimated_prompt_tokens + answer
