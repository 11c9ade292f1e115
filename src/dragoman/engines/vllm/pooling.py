"""Embeddings: vLLM computes them with its pooling runner, in place of answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from dragoman.engines.vllm.native import Native
from dragoman.errors import EngineFailed, Unavailable, Unsupported


class Pooling:
    """The embeddings of a model that was started with the pooling runner."""

    def __init__(self, llm: Native, config: Native) -> None:
        self._llm = llm
        self._numbers = itertools.count(1)
        model = config.model_config
        is_pooling = str(model.runner_type) == "pooling"
        self.size = int(_get_size(model)) if is_pooling else 0

    async def embed(self, inputs: Sequence[list[int]], adapter: Native | None) -> list[list[float]]:
        """Return a vector for each input; vLLM batches them."""
        if not self.size:
            raise Unsupported(
                "This model generates text; start it with `embeddings: true` to embed.",
                param="model",
            )
        return list(await asyncio.gather(*(self._embed(ids, adapter) for ids in inputs)))

    async def _embed(self, ids: list[int], adapter: Native | None) -> list[float]:
        from vllm.pooling_params import PoolingParams

        name = f"embed-{next(self._numbers)}"
        params = PoolingParams(task="embed")
        prompt = {"prompt_token_ids": ids}
        async for output in self._llm.encode(prompt, params, name, lora_request=adapter):
            if (error := getattr(output, "error", None)) is not None:
                raise (
                    Unavailable("The engine cannot embed this input now.", retry_after=1)
                    if getattr(error, "retryable", False)
                    else EngineFailed("The engine failed while embedding an input.")
                )
            if output.finished:
                vector: list[float] = output.outputs.data.tolist()
                return vector
        raise EngineFailed("The engine returned no embedding.")


def _get_size(model: Native) -> Native:
    pooler = getattr(model, "pooler_config", None)
    dimensions = getattr(pooler, "dimensions", None) if pooler is not None else None
    return dimensions or model.get_hidden_size()
