"""Keeps a model from thinking longer than its client allows, whatever the engine.

When the thoughts of an answer have used up their tokens, its reader closes them for the model. The
job is then stopped, and another one goes on from the prompt, what was said so far and the mark that
ends thoughts; an engine that remembers prompts has read nearly all of it already. To whoever reads
the steps it is one answer. A model that thinks again each time is left to it in the end: an answer
is worth more than a budget.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from dragoman.errors import ContextOverflow
from dragoman.models.model import Model
from dragoman.pipeline.merge import close_at_end
from dragoman.pipeline.reader import ChatReader
from dragoman.types import Job, Step


async def generate_within_budget(
    model: Model, job: Job, reader: ChatReader, grammar: str | None = None
) -> AsyncGenerator[Step, None]:
    """Steps of a job, and of those that take over from it, under the grammar of an answer."""
    first = True
    while True:
        async with close_at_end(model.engine.generate(job)) as steps:
            async for step in steps:
                # the prompt of a job that took over is no prompt to the client
                yield step if first else replace(step, prompt_tokens=None, cached_tokens=None)
                if reader.interrupted:
                    break
            else:
                return
        heard = reader.take_steps()
        job = replace(job, grammar=grammar)
        job = make_continuation_job(
            job, heard, await extend_prompt(job.prompt, heard, model), model
        )
        reader.continue_from(job.prompt)
        if job.sampling.max_tokens == 0:
            yield Step(finish="length")
            return
        first = False
        try:
            await model.engine.admit(job)
        except ContextOverflow:  # an engine that counts the tokens of a text itself
            yield Step(finish="length")
            return


async def extend_prompt(
    prompt: list[int] | str, heard: Sequence[Step], model: Model
) -> list[int] | str:
    """A prompt that goes on with what was said and the end of the thoughts."""
    end = model.output_format.reasoning_close_in_prompt
    said = "".join(step.text or "" for step in heard)
    if isinstance(prompt, str) or model.tokenizer is None:
        return f"{prompt}{said}{end}"
    ids = [token for step in heard for token in step.ids]
    if said and not ids:
        ids = await model.renderer.encode_markup(said)
    return [*prompt, *ids, *await model.renderer.encode_markup(end)]


def make_continuation_job(
    job: Job, heard: Sequence[Step], prompt: list[int] | str, model: Model
) -> Job:
    """The job that goes on from a prompt, within what is left of the limits."""
    spent = sum(step.tokens or len(step.ids) for step in heard)
    most, least = job.sampling.max_tokens, job.sampling.min_tokens
    if most is not None:
        most = max(0, most - spent)
        if model.capabilities.context is not None and isinstance(prompt, list):
            most = min(most, max(0, model.capabilities.context - len(prompt)))
    least = least and max(0, least - spent)
    sampling = replace(job.sampling, max_tokens=most, min_tokens=least)
    return replace(job, id=uuid.uuid4().hex, prompt=prompt, sampling=sampling)
