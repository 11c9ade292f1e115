"""Embeds texts with a model whose engine can embed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dragoman.errors import BadRequest
from dragoman.events import Usage
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import check_context_length, validate_embedding
from dragoman.telemetry.record import get_record
from dragoman.types import Embedder, Prompt


async def embed(
    name: str, inputs: Sequence[str | list[int]], services: Services, owner: str = ""
) -> tuple[str, list[list[float]], Usage]:
    """Return the id of the model, one vector for each input, and the usage."""
    record = get_record()
    record.requested_model = name
    with record.measure("resolve"):
        lease = await services.models.acquire(name, owner=owner)
    with lease as model:
        record.model = model.id
        validate_embedding(model)
        prompts = []
        for text in inputs:
            try:
                prompt = await model.renderer.encode_prompt(
                    Prompt(content=text, parse_special=False)
                )
            except BadRequest as error:
                error.param = "input"
                raise
            check_context_length(prompt, model, "input")
            prompts.append(prompt)
        embedder = cast(Embedder, model.engine)
        tokens = sum(len(prompt) for prompt in prompts if isinstance(prompt, list))
        with (
            services.limiter.reserve_tokens(owner, tokens, 0),
            services.admission.get_gate(model).enter(owner) as ticket,
        ):
            with record.measure("queue"):
                await ticket.acquire()
            with record.measure("embed"):
                vectors = await embedder.embed(prompts)
    return model.id, vectors, Usage(prompt=tokens)
