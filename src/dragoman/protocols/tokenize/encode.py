"""Response bodies of tokenizing and detokenizing."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType


class TokenizeResponse(Struct):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeResponse(Struct):
    prompt: str


class TokenizerInfo(Struct):
    """A model's tokenizer and chat template."""

    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    add_bos_token: bool
