"""The part of a tokenizer that a prompt needs (see `dragoman.tokenizers`)."""

from __future__ import annotations

from typing import Protocol


class TextEncoder(Protocol):
    """Turns plain text into token ids, and knows the special tokens."""

    pieces: list[bytes]
    specials: dict[str, int]
    bos_id: int | None
    add_bos: bool
    variables: dict[str, str]
    rstrip: frozenset[int]
    eos_ids: frozenset[int]

    async def encode(self, text: str) -> list[int]: ...
