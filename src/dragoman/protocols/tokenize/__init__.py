"""Tokenizing: vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, needs_strict_only
from dragoman.protocols.shared import openai
from dragoman.protocols.tokenize.tokenize import TokenizeRequest, decode_tokenize_request
from dragoman.types import Chat, Prompt

__all__ = ["DIALECT"]

DIALECT: Dialect[tuple[TokenizeRequest, Chat | Prompt]] = Dialect(
    name="tokenize",
    decode=needs_strict_only(decode_tokenize_request),
    encode_error=openai.encode_error,
)
