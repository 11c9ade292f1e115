"""Calls of engines that run in this process, which fail if the engine hangs.

Engines in child processes are watched where they are supervised, see `engines.subprocess`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from dragoman.engines.in_process_watch import GeneratedSteps
from dragoman.engines.subprocess.progress import CallKind, count_tokens
from dragoman.models.model import Model
from dragoman.pipeline.merge import close_at_end
from dragoman.pipeline.plan import Plan
from dragoman.types import Job, Step


def watch_call(model: Model, kind: CallKind, size: int) -> AbstractAsyncContextManager[None]:
    """Watch a call inside this block; `size` is how many tokens it must process."""
    return nullcontext() if model.watch is None else model.watch.watch(kind, size)


async def admit(job: Job, model: Model) -> None:
    """Have the engine accept or reject a job."""
    async with watch_call(model, "admit", count_tokens(job.prompt)):
        await model.engine.admit(job)


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
        answer = plan.max_answer_tokens or plan.model.capabilities.context or 0
        size = plan.estimated_prompt_tokens + answer
        generated = GeneratedSteps(source, plan.count_used_tokens)
        async with watch.watch("generate", size, plan.jobs[0], generated):
            yield source
