"""Tokenizing: `/tokenize` and `/detokenize`, in the forms of vLLM and llama-server.

decode    the request bodies
encode    the response bodies
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.shared import openai
from dragoman.protocols.tokenize.decode import (
    DetokenizeRequest,
    TokenizeRequest,
    decode_detokenize_request,
    decode_tokenize_request,
)
from dragoman.protocols.tokenize.encode import (
    DetokenizeResponse,
    TokenizeResponse,
    TokenizerInfo,
    encode_piece,
)
from dragoman.types import Chat, Prompt

__all__ = [
    "DIALECT",
    "DetokenizeRequest",
    "DetokenizeResponse",
    "TokenizeRequest",
    "TokenizeResponse",
    "TokenizerInfo",
    "decode_detokenize_request",
    "decode_tokenize_request",
    "encode_piece",
]

DIALECT: Dialect[tuple[TokenizeRequest, Chat | Prompt]] = Dialect(
    name="tokenize",
    decode=pass_strict(decode_tokenize_request),
    encode_error=openai.encode_error,
)
