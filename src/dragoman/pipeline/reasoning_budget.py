"""Limits the reasoning tokens of an answer, whatever the engine.

When the reasoning of an answer has used up its budget, the reader closes it on the model's behalf.
The job is then cancelled, and another job continues from the prompt, the output so far and the
marker that ends reasoning; an engine with a prompt cache has read nearly all of that already. For
the caller it is one stream of steps. After several interruptions, a model that starts to reason
again may continue without limit, because an answer is worth more than a budget.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from typing import cast

from msgspec.structs import replace

from dragoman.engines.adapter import start_job
from dragoman.errors import ContextOverflow
from dragoman.models.model import Model
from dragoman.pipeline.merge import close_at_end
from dragoman.pipeline.reader import ChatReader
from dragoman.pipeline.watch import admit
from dragoman.types import Job, Step


async def generate_within_budget(
    model: Model, job: Job, reader: ChatReader, grammar: str | None = None
) -> AsyncGenerator[Step, None]:
    """Yield the steps of a job and of the jobs that continue it under `grammar`."""
    first_id = job.id
    for count in itertools.count():
        async with close_at_end(start_job(model.engine, job)) as steps:
            async for step in steps:
                # The client's prompt is that of the first job.
                yield replace(step, prompt_tokens=None, cached_tokens=None) if count else step
                if reader.interrupted:
                    break
            else:
                return
        output = reader.take_steps()
        prompt = await extend_prompt(job.prompt, output, model)
        job = replace(job, id=f"{first_id}-c{count + 1}", grammar=grammar)
        job = make_continuation_job(job, output, prompt, model)
        reader.continue_from(job.prompt)
        if job.sampling.max_tokens == 0:
            yield Step(finish="length")
            return
        try:
            await admit(job, model)
        except ContextOverflow:  # from an engine that tokenizes text prompts itself
            yield Step(finish="length")
            return


async def extend_prompt(
    prompt: list[int] | str, output: Sequence[Step], model: Model
) -> list[int] | str:
    """Return the prompt with the output so far and the end of the reasoning appended."""
    close = model.output_format.reasoning_close_in_prompt
    text = "".join(step.text or "" for step in output)
    if isinstance(prompt, str) or model.tokenizer is None:
        return f"{prompt}{text}{close}"
    ids = [token for step in output for token in step.ids]
    if text and not ids:
        ids = await _encode_markup(text, model)
    return [*prompt, *ids, *await _encode_markup(close, model)]


async def _encode_markup(text: str, model: Model) -> list[int]:
    return cast("list[int]", await model.renderer.encode_markup(text))  # it has a tokenizer


def make_continuation_job(
    job: Job, output: Sequence[Step], prompt: list[int] | str, model: Model
) -> Job:
    """Make the job that continues from a prompt, within what is left of the limits."""
    generated = sum(step.tokens or len(step.ids) for step in output)
    max_tokens, min_tokens = job.sampling.max_tokens, job.sampling.min_tokens
    if max_tokens is not None:
        max_tokens = max(0, max_tokens - generated)
        context = model.capabilities.context
        may_shift = model.capabilities.context_shift
        if context is not None and not may_shift and isinstance(prompt, list):
            max_tokens = min(max_tokens, max(0, context - len(prompt)))
    if min_tokens:
        min_tokens = max(0, min_tokens - generated)
    sampling = replace(job.sampling, max_tokens=max_tokens, min_tokens=min_tokens)
    return replace(job, prompt=prompt, sampling=sampling)
