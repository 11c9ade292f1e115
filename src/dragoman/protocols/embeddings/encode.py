"""Encode embeddings as lists of numbers or as base64, batch by batch."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence

from msgspec import Struct

from dragoman.errors import BadRequest, EngineFailed
from dragoman.protocols.embeddings.decode import EmbeddingInput
from dragoman.protocols.shared import openai


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
            if not all(map(math.isfinite, vector)):
                raise EngineFailed("The engine returned a vector with values that are not numbers.")
            short = shorten_vector(vector, self._request.dimensions)
            content = pack_vector(short) if self._request.base64 else short
            data = EmbeddingData("embedding", len(self._parts), content)
            self._parts.append(openai.encode(data))

    def encode_whole(self, model: str, tokens: int) -> bytes:
        """Return the response with all vectors."""
        envelope = openai.encode(EmbeddingList("list", [], model, EmbeddingUsage(tokens, tokens)))
        start, empty, end = envelope.partition(b'"data":[')
        return b"".join((start, empty, b",".join(self._parts), end))


def shorten_vector(vector: list[float], dimensions: int | None) -> list[float]:
    """Return the first dimensions, scaled back to unit length."""
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise BadRequest(
            f"`dimensions` must be at most {len(vector)} for this model.", param="dimensions"
        )
    head = vector[:dimensions]
    norm = math.sqrt(sum(x * x for x in head)) or 1.0
    return [x / norm for x in head]


def pack_vector(vector: list[float]) -> str:
    """Return little-endian 32-bit floats in base64, which the SDKs request by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
