"""Tokenizing: `/tokenize`, `/detokenize` and `/apply-template`, as vLLM and llama-server have them.

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
    TemplateResponse,
    TokenizeResponse,
    TokenizerInfo,
    encode_piece,
)
from dragoman.types import Chat, Prompt

__all__ = [
    "DIALECT",
    "DetokenizeRequest",
    "DetokenizeResponse",
    "TemplateResponse",
    "TokenizeRequest",
    "TokenizeResponse",
    "TokenizerInfo",
    "decode_detokenize_request",
    "decode_tokenize_request",
    "encode_piece",
]

DIALECT: Dialect[tuple[TokenizeRequest, Chat | list[Prompt]]] = Dialect(
    name="tokenize",
    decode=pass_strict(decode_tokenize_request),
    encode_error=openai.encode_error,
)
