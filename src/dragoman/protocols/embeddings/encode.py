"""Encode embeddings as lists of numbers or as base64, batch by batch."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

from msgspec import Struct

from dragoman.protocols.embeddings.decode import EmbeddingInput
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.vectors import check_vector, shorten_vector


class EmbeddingData(Struct):
    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """Vectors in the order of the inputs."""

    object: str
    data: list[EmbeddingData]
    model: str
    usage: EmbeddingUsage


class EmbeddingEncoder:
    """Encodes the vectors of one request as they come."""

    def __init__(self, request: EmbeddingInput) -> None:
        self._request = request
        self._parts: list[bytes] = []

    def add(self, vectors: Sequence[list[float]]) -> None:
        """Encode the next vectors."""
        for vector in vectors:
            check_vector(vector)
            short = shorten_vector(vector, self._request.dimensions)
            content = pack_vector(short) if self._request.is_base64 else short
            data = EmbeddingData("embedding", len(self._parts), content)
            self._parts.append(openai.encode(data))

    def encode_whole(self, model: str, tokens: int) -> bytes:
        """Return the response with all vectors."""
        envelope = openai.encode(EmbeddingList("list", [], model, EmbeddingUsage(tokens, tokens)))
        start, empty, end = envelope.partition(b'"data":[')
        return b"".join((start, empty, b",".join(self._parts), end))


def pack_vector(vector: list[float]) -> str:
    """Return little-endian 32-bit floats in base64, which the SDKs request by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
