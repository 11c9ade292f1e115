"""Texts to vectors, by a model whose engine can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from dragoman.errors import BadRequest, Unsupported
from dragoman.events import Usage
from dragoman.models.registry import ModelRegistry
from dragoman.pipeline.validate import check_context_length
from dragoman.types import Embedder, Prompt


async def embed(
    name: str, inputs: Sequence[str | list[int]], models: ModelRegistry
) -> tuple[str, list[list[float]], Usage]:
    """Vectors of the inputs, the model that made them, and what they cost."""
    with await models.acquire(name) as model:
        if not model.capabilities.embeddings:
            raise Unsupported("This model's engine cannot embed.", param="model")
        contents = []
        for one in inputs:
            try:
                content = await model.renderer.encode_prompt(Prompt(content=one))
            except BadRequest as error:
                error.param = "input"
                raise
            check_context_length(content, model, "input")
            contents.append(content)
        embedder = cast(Embedder, model.engine)
        with model.gate.enter(1) as ticket:
            await ticket.wait()
            vectors = await embedder.embed(contents)
    spent = sum(len(content) for content in contents if isinstance(content, list))
    return model.id, vectors, Usage(prompt=spent)
