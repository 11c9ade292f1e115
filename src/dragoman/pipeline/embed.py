"""Embeds texts with a model whose engine can embed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dragoman.errors import BadRequest
from dragoman.events import Usage
from dragoman.pipeline.services import Services
from dragoman.pipeline.validate import check_context_length, validate_embedding
from dragoman.types import Embedder, Prompt


async def embed(
    name: str, inputs: Sequence[str | list[int]], services: Services
) -> tuple[str, list[list[float]], Usage]:
    """Return the id of the model, one vector for each input, and the usage."""
    with await services.models.acquire(name) as model:
        validate_embedding(model)
        prompts = []
        for text in inputs:
            try:
                prompt = await model.renderer.encode_prompt(Prompt(content=text))
            except BadRequest as error:
                error.param = "input"
                raise
            check_context_length(prompt, model, "input")
            prompts.append(prompt)
        embedder = cast(Embedder, model.engine)
        with services.admission.get_gate(model).enter(1) as ticket:
            await ticket.wait()
            vectors = await embedder.embed(prompts)
    tokens = sum(len(prompt) for prompt in prompts if isinstance(prompt, list))
    return model.id, vectors, Usage(prompt=tokens)
