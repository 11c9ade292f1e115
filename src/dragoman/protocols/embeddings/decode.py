"""Decode an embeddings request."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared import openai
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.prompts import PromptFields, decode_prompts


class EmbeddingRequest(Struct, kw_only=True):
    """Input to embed: a string, token ids, or a list of either."""

    model: openai.ModelName | None = None
    input: PromptFields
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    stream: bool | None = None
    user: str | None = None


class EmbeddingInput(Struct, frozen=True):
    """What an embeddings request asks for."""

    model: str
    inputs: list[str | list[int]]
    is_base64: bool
    dimensions: int | None


def decode_request(body: bytes, strict: bool = False) -> EmbeddingInput:
    fields = decode_body(body, EmbeddingRequest, strict)
    if fields.stream:
        raise BadRequest("Embeddings cannot be streamed.", param="stream")
    inputs = decode_prompts(fields.input, "input")
    for i, value in enumerate(inputs):
        if value == "":
            path = "input" if isinstance(fields.input, str) else f"input[{i}]"
            raise BadRequest(f"`{path}` must not be empty.", param=path)
    return EmbeddingInput(
        fields.model or "",
        inputs,
        fields.encoding_format == "base64",
        fields.dimensions,
    )
