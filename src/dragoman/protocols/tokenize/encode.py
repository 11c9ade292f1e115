"""Response bodies of tokenizing and detokenizing."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType


class TokenPiece(Struct):
    """A token and its text, or its bytes if they are not text by themselves."""

    id: int
    piece: str | list[int]


class TokenizeResponse(Struct):
    count: int
    max_model_len: int | None
    tokens: Sequence[int | TokenPiece]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeResponse(Struct):
    """The text, under the names of vLLM and of llama-server."""

    prompt: str
    content: str


class TemplateResponse(Struct):
    """The prompt that a model's chat template renders."""

    prompt: str


def encode_piece(token: int, data: bytes) -> TokenPiece:
    try:
        return TokenPiece(token, data.decode())
    except UnicodeDecodeError:
        return TokenPiece(token, list(data))


class TokenizerInfo(Struct):
    """A model's tokenizer and chat template."""

    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    add_bos_token: bool
