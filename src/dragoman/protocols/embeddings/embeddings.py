"""Embeddings: texts or token ids to vectors."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dragoman.errors import BadRequest, EngineFailed
from dragoman.protocols.completions.completions import decode_prompts
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body


class EmbeddingRequest(Struct, kw_only=True):
    """What to embed: a string, token ids, or a list of either."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    stream: bool | None = None
    user: str | None = None


class EmbeddingInput(Struct, frozen=True):
    """The same, dialect apart."""

    model: str
    inputs: list[str | list[int]]
    base64: bool
    dimensions: int | None


class Embedding(Struct):
    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """Vectors in the order of the inputs."""

    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def decode_request(body: bytes, strict: bool = False) -> EmbeddingInput:
    said = decode_body(body, EmbeddingRequest, strict)
    if said.stream:
        raise BadRequest("Embeddings cannot be streamed.", param="stream")
    inputs = decode_prompts(said.input, "input")
    for i, one in enumerate(inputs):
        if one == "":
            at = "input" if isinstance(said.input, str) else f"input[{i}]"
            raise BadRequest(f"`{at}` must not be empty.", param=at)
    return EmbeddingInput(
        openai.check_model(said.model), inputs, said.encoding_format == "base64", said.dimensions
    )


def encode_embeddings(
    request: EmbeddingInput, model: str, vectors: Sequence[list[float]], tokens: int
) -> bytes:
    data = []
    for index, vector in enumerate(vectors):
        if not all(map(math.isfinite, vector)):
            raise EngineFailed("The engine gave a vector that is not made of numbers.")
        short = shorten_vector(vector, request.dimensions)
        data.append(Embedding("embedding", index, pack_vector(short) if request.base64 else short))
    return openai.encode(EmbeddingList("list", data, model, EmbeddingUsage(tokens, tokens)))


def shorten_vector(vector: list[float], dimensions: int | None) -> list[float]:
    """The first dimensions, scaled back to length one."""
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise BadRequest(
            f"This model's vectors have {len(vector)} dimensions, fewer than were asked for.",
            param="dimensions",
        )
    head = vector[:dimensions]
    norm = math.sqrt(sum(x * x for x in head)) or 1.0
    return [x / norm for x in head]


def pack_vector(vector: list[float]) -> str:
    """Little-endian 32-bit floats in base64, as the SDKs ask for by default."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
