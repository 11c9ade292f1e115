"""The native server that pools: it embeds texts, or scores pairs of texts.

One context of the native library cannot generate and pool. So pooling has a server of its own with
the same weights, mapped from the same file, which is started with the first call.
"""

from __future__ import annotations

import asyncio
import math
import struct
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from dragoman.engines.limits import check_token_ids, make_context_overflow
from dragoman.engines.llamacpp.loading.native_params import (
    LoadPlan,
    count_pooling_slots,
    get_pooling_context,
)
from dragoman.engines.llamacpp.loading.server import NativeServer, launch
from dragoman.engines.llamacpp.pooling.batches import SHARED_TOKENS, InputBatches
from dragoman.engines.llamacpp.pooling.head import read_head
from dragoman.engines.llamacpp.prompt_speed import PromptSpeed
from dragoman.errors import BadRequest, DragomanError, EngineFailed

RAW, UNIT_LENGTH = -1, 2  # how the server normalizes vectors


class _ServerEmbedding(Struct):
    embedding: bytes  # base64 of 32-bit floats: as text, numbers cost a multiple of the time
    index: int = 0


class _EmbeddingsResponse(Struct):
    data: list[_ServerEmbedding]


class PoolingServer:
    """Embeds and scores with one model."""

    def __init__(
        self, plan: LoadPlan, speed: PromptSpeed, parse_error: Callable[[bytes], DragomanError]
    ) -> None:
        self.head = read_head(plan.header)
        self.context = get_pooling_context(plan)  # tokens of one input
        self._plan = plan
        self._speed = speed
        self._parse_error = parse_error
        self._native: NativeServer | None = None
        self._start = asyncio.Lock()
        self._due = 0.0  # when the current batch should be done
        # on a GPU there is no second kernel to avoid
        shared_tokens = self.context if plan.on_gpu else min(SHARED_TOKENS, self.context)
        self._batches = InputBatches(self._compute, count_pooling_slots(plan), shared_tokens)

    async def embed(self, inputs: Sequence[list[int]]) -> list[list[float]]:
        """Return one vector of length 1 for each input."""
        return await self._batches.run(inputs) if inputs else []

    async def score(self, inputs: Sequence[list[int]]) -> list[float]:
        """Return the relevance of each pair of texts, between 0 and 1."""
        vectors = await self._batches.run(inputs) if inputs else []
        return [self.head.compute_score(vector) for vector in vectors]

    def check_input(self, ids: Sequence[int], vocabulary_size: int, param: str) -> None:
        """Raise a `BadRequest` for an input that the server would not compute."""
        if not ids:
            raise BadRequest("The input is empty.", param=param)
        check_token_ids(ids, vocabulary_size, param)
        if len(ids) > self.context:
            raise make_context_overflow(len(ids), self.context, param=param)

    async def probe(self, path: str) -> None:
        """Wait until the server has answered; return at once while it may be busy with a batch."""
        if self._native is not None and time.monotonic() > self._due:
            await self._native.client.get(path)

    async def aclose(self) -> None:
        await self._batches.aclose()
        if self._native is not None:
            await asyncio.to_thread(self._native.close)

    async def _compute(self, inputs: list[list[int]]) -> list[list[float]]:
        native = await self._launch()
        self._due = time.monotonic() + self._speed.get_max_step_seconds(sum(map(len, inputs)))
        normalize = UNIT_LENGTH if self.head.embeds else RAW
        status, body = await native.client.post(
            "/v1/embeddings",
            {"input": inputs, "embd_normalize": normalize, "encoding_format": "base64"},
        )
        if status != 200:
            raise self._parse_error(body)
        vectors = decode_vectors(body, self.head.outputs if self.head.ranks else None)
        if len(vectors) != len(inputs):
            raise EngineFailed("The engine returned another number of vectors than of inputs.")
        return vectors

    async def _launch(self) -> NativeServer:
        async with self._start:
            if self._native is None:
                self._native = await asyncio.to_thread(launch, self._plan, embedding=True)
            return self._native


def decode_vectors(body: bytes, count: int | None) -> list[list[float]]:
    """Return the first `count` values (None: all) of each vector in the server's answer.

    A rank head computes a few values, to which the server appends memory that it never wrote. So
    only the values that are used must be numbers.
    """
    data = msgspec.json.decode(body, type=_EmbeddingsResponse).data
    vectors = [
        unpack_floats(entry.embedding)[:count] for entry in sorted(data, key=lambda x: x.index)
    ]
    if not all(math.isfinite(value) for vector in vectors for value in vector):
        raise EngineFailed("The engine computed a value that is not a number.")
    return vectors


def unpack_floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))
