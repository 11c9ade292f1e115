"""From the pieces of a prompt to token ids."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.prompt.token_cache import TokenCache
from dragoman.replay.turn_boundaries import Piece

YIELD = 20_000  # characters that are cut into tokens before others get a turn


class TextEncoder(Protocol):
    """What is needed of a tokenizer; see `dragoman.tokenizer`."""

    pieces: list[bytes]
    specials: dict[str, int]
    bos_id: int | None
    add_bos: bool
    variables: dict[str, str]
    rstrip: frozenset[int]
    eos_ids: frozenset[int]

    async def encode(self, text: str) -> list[int]: ...


class EncodedPrompt(Struct, frozen=True):
    """Token ids, and how many of them were known."""

    ids: array[int]
    cached: int = 0
    opened: int | None = None  # where the piece that opens the answer begins


async def encode_pieces(
    pieces: Sequence[Piece], tokenizer: TextEncoder, segments: TokenCache, opened: int | None = None
) -> EncodedPrompt:
    """The ids of all pieces; `opened` is the piece that opens the answer."""
    ids = array("i")
    cached = cut = 0
    swallow, place = False, None
    for at, piece in enumerate(pieces):
        place = len(ids) if at == opened else place
        if not isinstance(piece, str):
            ids.extend(piece)
            swallow = False
            continue
        if at % 2:
            token = tokenizer.specials[piece]
            ids.append(token)
            swallow = token in tokenizer.rstrip
            continue
        text = piece.lstrip() if swallow else piece
        known = segments.get(text) if text else ()
        if known is not None:
            ids.extend(known)
            cached += len(known)
            continue
        if cut > YIELD:
            cut = 0
            await asyncio.sleep(0)
        cut += len(text)
        fresh = await tokenizer.encode(text)
        segments.put(text, fresh)
        ids.extend(fresh)
    return _begun(EncodedPrompt(ids, cached, place), tokenizer)


def _begun(made: EncodedPrompt, tokenizer: TextEncoder) -> EncodedPrompt:
    """Exactly one token that begins the text, where the model wants one."""
    bos, ids = tokenizer.bos_id, made.ids
    if bos is None or not tokenizer.add_bos or not ids:
        return made
    first = next((at for at, token in enumerate(ids) if token != bos), len(ids))
    opened = None if made.opened is None else made.opened + 1 - first
    return EncodedPrompt(array("i", [bos]) + ids[first:], made.cached, opened)
