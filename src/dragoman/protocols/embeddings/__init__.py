"""Embeddings: OpenAI's `/v1/embeddings`."""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, needs_strict_only
from dragoman.protocols.embeddings.embeddings import EmbeddingInput, decode_request
from dragoman.protocols.shared import openai

__all__ = ["DIALECT"]

DIALECT: Dialect[EmbeddingInput] = Dialect(
    name="embeddings", decode=needs_strict_only(decode_request), encode_error=openai.encode_error
)
