"""Embeds texts with a model whose engine can embed.

Each slice of vectors is delivered as it comes, so that a long list is never in memory all at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from msgspec.structs import replace

from dragoman.errors import BadRequest, ContextOverflow
from dragoman.events import Usage
from dragoman.models.model import Model
from dragoman.pipeline.admission import SlotClaim, Ticket
from dragoman.pipeline.plan import estimate_tokens
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import (
    check_context_length,
    check_total_length,
    validate_embedding,
)
from dragoman.pipeline.watch import watch_call
from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.telemetry.record import get_record
from dragoman.types import Embedder, Prompt
from dragoman.types.embedding import EmbeddingTask
from dragoman.types.loop_share import LoopShare
from dragoman.types.request_priority import get_priority

SLICE_INPUTS, SLICE_TOKENS = 16, 4096  # that are embedded in one turn
EncodedInput: TypeAlias = list[int] | str
DeliverVectors: TypeAlias = Callable[[Sequence[list[float]]], Awaitable[None]]


def count_tokens(inputs: Sequence[EncodedInput]) -> int:
    """Count the tokens of inputs, as far as they are known."""
    return sum(len(content) for content in inputs if isinstance(content, list))


def split_inputs(inputs: Sequence[EncodedInput]) -> list[list[EncodedInput]]:
    """Split inputs into slices, each of which is embedded in one turn."""
    slices: list[list[EncodedInput]] = [[]]
    tokens = 0
    for content in inputs:
        size = len(content)
        is_full = len(slices[-1]) == SLICE_INPUTS or tokens + size > SLICE_TOKENS
        if slices[-1] and is_full:
            slices.append([])
            tokens = 0
        slices[-1].append(content)
        tokens += size
    return slices


async def encode_inputs(
    inputs: Sequence[str | list[int]], model: Model, truncates: bool = False
) -> list[EncodedInput]:
    """Encode all inputs, within the limits of each and of all together."""
    limit = model.make_embedding_limit("input")
    encoded: list[EncodedInput] = []
    total, share = 0, LoopShare()
    for content in inputs:
        await share.give_way()
        try:
            prompt = await encode_input(content, model, limit)
        except ContextOverflow:
            if not truncates:
                raise
            prompt = await encode_beginning(content, model, limit)
        total += count_tokens([prompt])
        check_total_length(total, model, "input")
        encoded.append(prompt)
    return encoded


async def encode_input(content: str | list[int], model: Model, limit: PromptLimit) -> EncodedInput:
    """Encode an input, or reject one that is too long."""
    try:
        prompt = await encode_text(content, model, limit)
    except BadRequest as error:
        error.param = "input"
        raise
    if isinstance(prompt, list):
        limit.check_tokens(len(prompt), is_whole=True)
    check_context_length(None if isinstance(prompt, str) else len(prompt), model, "input")
    return prompt


async def encode_text(content: str | list[int], model: Model, limit: PromptLimit) -> EncodedInput:
    return await model.renderer.encode_prompt(Prompt(content=content, parse_special=False), limit)


async def encode_beginning(
    content: str | list[int], model: Model, limit: PromptLimit
) -> EncodedInput:
    """Encode as much of an input as its model reads."""
    context = model.capabilities.context
    tokens = limit.tokens if context is None else min(limit.tokens, context - 1)
    if isinstance(content, list):
        return content[:tokens]
    text = content[: limit.characters]
    encoded = await encode_text(text, model, replace(limit, tokens=max(tokens, len(text) + 1)))
    return encoded[:tokens] if isinstance(encoded, list) else encoded


async def acquire_slot(
    ticket: Ticket, inputs: list[EncodedInput], after: SlotClaim | None = None
) -> SlotClaim:
    """Wait for the turn of a slice. An input costs a step of the engine, as a generated token."""
    count = len(inputs)
    tokens = sum(estimate_tokens(content) for content in inputs)
    claim = await ticket.acquire(prompt_tokens=tokens, max_tokens=count, after=after)
    claim.count_generated = lambda: count
    return claim


async def embed_slice(inputs: list[EncodedInput], model: Model) -> list[list[float]]:
    """Return the vectors of inputs."""
    async with watch_call(model, "embed", count_tokens(inputs)):
        return await cast(Embedder, model.engine).embed(inputs)


async def embed(
    task: EmbeddingTask, services: Services, deliver: DeliverVectors
) -> tuple[str, Usage]:
    """Deliver one vector for each input, in order. Returns the model's name and the usage."""
    record, owner = get_record(), task.owner
    record.requested_model = task.model
    with record.measure("resolve"):
        lease = await services.models.acquire(task.model, owner=owner, keep_alive=task.keep_alive)
    with lease as model:
        record.model = model.id
        validate_embedding(model, task.dimensions)
        with record.measure("render"):
            prompts = await encode_inputs(task.inputs, model, task.truncates)
        tokens = count_tokens(prompts)
        with (
            services.limiter.reserve_tokens(owner, tokens, 0),
            services.admission.get_gate(model).enter(owner, get_priority()) as ticket,
        ):
            slices = split_inputs(prompts)
            with record.measure("queue"):
                claim = await acquire_slot(ticket, slices[0])
            with record.measure("embed"):
                await deliver(await embed_slice(slices[0], model))
                for inputs in slices[1:]:  # others take their turns between two slices
                    claim = await acquire_slot(ticket, inputs, after=claim)
                    await deliver(await embed_slice(inputs, model))
    return lease.model_name, Usage(prompt=tokens)
