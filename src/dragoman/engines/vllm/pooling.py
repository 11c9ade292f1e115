"""Embeddings and scores: vLLM computes them with its pooling runner, in place of answers.

A cross-encoder (a classifier with one class) scores pairs of texts; vLLM applies its activation, so
that a score is between 0 and 1. Every other pooling model embeds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from dragoman.engines.vllm.native import Native
from dragoman.errors import EngineFailed, Unavailable, Unsupported
from dragoman.types.text_pair import TextPair

CROSS_ENCODER = "cross-encoder"


class Pooling:
    """What a model computes that was started with the pooling runner."""

    def __init__(self, llm: Native, config: Native) -> None:
        self._llm = llm
        self._numbers = itertools.count(1)
        model = config.model_config
        self.is_active = str(model.runner_type) == "pooling"
        is_classifier = self.is_active and getattr(model, "score_type", "") == CROSS_ENCODER
        labels = getattr(model.hf_config, "num_labels", 1) if is_classifier else 0
        self.scores = is_classifier and labels == 1
        self.size = int(_get_size(model)) if self.is_active and not is_classifier else 0

    async def embed(self, inputs: Sequence[list[int]], adapter: Native | None) -> list[list[float]]:
        """Return a vector for each input; vLLM batches them."""
        if not self.size:
            raise Unsupported(
                "This model does not embed texts; one that generates needs `embeddings: true`.",
                param="model",
            )
        from vllm.pooling_params import PoolingParams

        params = PoolingParams(task="embed")
        vectors: list[list[float]] = await asyncio.gather(
            *(self._pool(ids, params, adapter) for ids in inputs)
        )
        return vectors

    async def score(self, pairs: Sequence[TextPair]) -> list[float]:
        """Return the relevance of each pair."""
        if not self.scores:
            raise Unsupported("This model does not score texts.", param="model")
        from vllm.pooling_params import PoolingParams

        results = await asyncio.gather(
            *(
                self._pool(pair.ids, PoolingParams(task="classify", extra_kwargs=_get_types(pair)))
                for pair in pairs
            )
        )
        return [float(values[0]) for values in results]

    async def _pool(self, ids: list[int], params: Native, adapter: Native | None = None) -> Native:
        prompt, name = {"prompt_token_ids": ids}, f"pool-{next(self._numbers)}"
        async for output in self._llm.encode(prompt, params, name, lora_request=adapter):
            if (error := getattr(output, "error", None)) is not None:
                raise (
                    Unavailable("The engine cannot compute this input now.", retry_after=1)
                    if getattr(error, "retryable", False)
                    else EngineFailed("The engine failed while computing an input.")
                )
            if output.finished:
                return output.outputs.data.flatten().tolist()
        raise EngineFailed("The engine returned no result.")


def _get_types(pair: TextPair) -> dict[str, int] | None:
    """Return where tokens of the second type begin, as vLLM takes it."""
    if pair.document_start is None:
        return None
    return {"compressed_token_type_ids": pair.document_start}


def _get_size(model: Native) -> Native:
    pooler = getattr(model, "pooler_config", None)
    dimensions = getattr(pooler, "dimensions", None) if pooler is not None else None
    return dimensions or model.get_hidden_size()
