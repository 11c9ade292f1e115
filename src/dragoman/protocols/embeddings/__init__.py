"""Embeddings: OpenAI's `/v1/embeddings`.

decode    the request body, into an `EmbeddingInput`
encode    the vectors, as numbers or as base64
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.embeddings.decode import EmbeddingInput, EmbeddingRequest, decode_request
from dragoman.protocols.embeddings.encode import EmbeddingEncoder, EmbeddingList
from dragoman.protocols.shared import openai

__all__ = [
    "DIALECT",
    "EmbeddingEncoder",
    "EmbeddingInput",
    "EmbeddingList",
    "EmbeddingRequest",
    "decode_request",
]

DIALECT: Dialect[EmbeddingInput] = Dialect(
    name="embeddings", decode=pass_strict(decode_request), encode_error=openai.encode_error
)
