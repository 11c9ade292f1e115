"""Embeds texts with a model whose engine can embed.

Each slice of vectors is delivered as it comes, so that a long list is never in memory all at once.
Inputs of a request that are equal are computed once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, cast

from msgspec.structs import replace

from dragoman.errors import ContextOverflow, EngineFailed
from dragoman.events import Usage
from dragoman.models.model import Model
from dragoman.pipeline.plan import estimate_tokens
from dragoman.pipeline.pooling.slices import lease_model, queue_slices
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import (
    check_total_length,
    validate_embedding,
)
from dragoman.pipeline.watch import watch_call
from dragoman.prompt.text_pairs import get_text_format
from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.telemetry.record import get_record
from dragoman.types import Embedder, Prompt
from dragoman.types.loop_share import LoopShare
from dragoman.types.pooling_tasks import EmbeddingTask

EncodedInput: TypeAlias = list[int] | str
InputKey: TypeAlias = tuple[int, ...] | str
DeliverVectors: TypeAlias = Callable[[Sequence[list[float]]], Awaitable[None]]


def count_tokens(inputs: Sequence[EncodedInput]) -> int:
    """Count the tokens of inputs, as far as they are known."""
    return sum(len(content) for content in inputs if isinstance(content, list))


async def encode_inputs(
    inputs: Sequence[str | list[int]], model: Model, truncates: bool = False
) -> list[EncodedInput]:
    """Encode all inputs, within the limits of each and of all together."""
    limit = model.make_embedding_limit("input")
    encoded: list[EncodedInput] = []
    total, share = 0, LoopShare()
    for content in inputs:
        await share.yield_if_due()
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
    """Encode an input, with the special tokens that its model expects around a text."""
    ids = await encode_plain(content, model, limit)
    if isinstance(ids, str):
        return ids
    wrapped = ids if isinstance(content, list) else get_text_format(model.tokenizer).wrap(ids)
    limit.check_tokens(len(wrapped), is_whole=True)
    return wrapped


async def encode_plain(content: str | list[int], model: Model, limit: PromptLimit) -> EncodedInput:
    """Encode a text without any special tokens."""
    prompt = Prompt(content=content, parse_special=False, add_special_tokens=False)
    return await model.renderer.encode_prompt(prompt, limit)


async def encode_beginning(
    content: str | list[int], model: Model, limit: PromptLimit
) -> EncodedInput:
    """Encode as much of an input as its model reads."""
    if isinstance(content, list):
        return content[: limit.tokens]
    text_format = get_text_format(model.tokenizer)
    tokens = limit.tokens - len(text_format.wrap(()))
    ids = await encode_first_tokens(content, model, limit, max(0, tokens))
    return ids if isinstance(ids, str) else text_format.wrap(ids)


async def encode_first_tokens(
    text: str, model: Model, limit: PromptLimit, tokens: int
) -> EncodedInput:
    """Encode a text without any special tokens, and return the first of its tokens."""
    text = text[: limit.characters]
    encoded = await encode_plain(text, model, replace(limit, tokens=max(tokens, len(text) + 1)))
    return encoded[:tokens] if isinstance(encoded, list) else encoded


async def embed_slice(inputs: list[EncodedInput], model: Model) -> list[list[float]]:
    """Return the vectors of inputs."""
    with watch_call(model, "embed", count_tokens(inputs)):
        vectors = await cast(Embedder, model.engine).embed(inputs)
    if len(vectors) != len(inputs):
        raise EngineFailed("The engine returned another number of vectors than of inputs.")
    return vectors


class VectorList:
    """The vectors of a request, in the order of its inputs; equal inputs share one."""

    def __init__(self, prompts: Sequence[EncodedInput]) -> None:
        self._keys = [make_key(prompt) for prompt in prompts]
        self._last_uses = {key: place for place, key in enumerate(self._keys)}
        self._vectors: dict[InputKey, list[float]] = {}  # computed, and still to be delivered
        self._next = 0  # the input whose vector is delivered next
        unique = dict(zip(self._keys, prompts, strict=True))
        self.inputs = list(unique.values())  # to compute, in the order they first appear

    def add(self, inputs: Sequence[EncodedInput], vectors: Sequence[list[float]]) -> None:
        """Add the vectors of the next inputs."""
        self._vectors.update(zip(map(make_key, inputs), vectors, strict=True))

    def take_next(self) -> list[list[float]]:
        """Return the next vectors in order; those of later inputs are kept."""
        taken: list[list[float]] = []
        for place in range(self._next, len(self._keys)):
            key = self._keys[place]
            if key not in self._vectors:
                break
            is_last = self._last_uses[key] == place
            taken.append(self._vectors.pop(key) if is_last else self._vectors[key])
        self._next += len(taken)
        return taken


def make_key(prompt: EncodedInput) -> InputKey:
    return tuple(prompt) if isinstance(prompt, list) else prompt


async def embed(
    task: EmbeddingTask, services: Services, deliver: DeliverVectors
) -> tuple[str, Usage]:
    """Deliver one vector for each input, in order. Returns the model's name and the usage."""
    async with lease_model(task.model, services, task.owner, task.keep_alive) as lease:
        model = lease.model
        validate_embedding(model, task.dimensions)
        with get_record().measure("render"):
            prompts = await encode_inputs(task.inputs, model, task.truncates)

        vectors = VectorList(prompts)

        async def compute(inputs: list[EncodedInput]) -> None:
            vectors.add(inputs, await embed_slice(inputs, model))
            await deliver(vectors.take_next())

        tokens = count_tokens(prompts)
        with queue_slices(lease, services, task.owner, tokens, "embed") as slices:
            await slices.run(vectors.inputs, estimate_tokens, compute)
    return lease.model_name, Usage(prompt=tokens)
