"""Encodes the pieces of a prompt as token ids.

Short texts are encoded on the event loop, which gets to run after each few of them, whichever
request they belong to.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Struct

from dragoman.prompt.pieces import Piece
from dragoman.prompt.tokens.limit import DEFAULT_LIMIT, PromptLimit
from dragoman.prompt.tokens.slices import encode_text
from dragoman.prompt.tokens.text_encoder import TextEncoder
from dragoman.prompt.tokens.token_cache import TokenCache

PIECE_COST = 100  # characters that a piece counts for, besides its text
COUNTED_PIECES = 1 << 12  # pieces whose characters are counted at a time
COMPARED_IDS = 1 << 10


class EncodedPrompt(Struct, frozen=True):
    ids: array[int]
    cached_tokens: int = 0  # how many ids came from the token cache
    answer_start: int | None = None  # the first id of the piece that starts the answer


async def encode_pieces(
    pieces: Sequence[Piece],
    tokenizer: TextEncoder,
    cache: TokenCache,
    answer_start: int | None = None,
    *,
    fix_bos: bool = True,
    limit: PromptLimit = DEFAULT_LIMIT,
) -> EncodedPrompt:
    """Encode all pieces; `answer_start` is the piece that starts the answer.

    With `fix_bos`, the pieces are a whole prompt, which gets a BOS token if the model uses one.
    """
    await _check_characters(pieces, cache, limit)
    ids = array("i")
    cached = 0
    strip, start = False, None
    for index, piece in enumerate(pieces):
        await cache.work.add(PIECE_COST)
        start = len(ids) if index == answer_start else start
        if not isinstance(piece, str):
            ids.extend(piece)
            strip = False
            continue
        if index % 2:
            token = tokenizer.specials[piece]
            ids.append(token)
            strip = token in tokenizer.rstrip
            continue
        text = piece.lstrip() if strip else piece
        known = cache.get(text) if text else ()
        if known is not None:
            ids.extend(known)
            cached += len(known)
            continue
        limit.check_tokens(len(ids))
        await cache.work.add(len(text))
        new = await encode_text(text, tokenizer, limit, len(ids))
        cache.put(text, new)
        ids.extend(new)
    encoded_prompt = EncodedPrompt(ids, cached, start)
    return _fix_bos(encoded_prompt, tokenizer) if fix_bos else encoded_prompt


async def _check_characters(pieces: Sequence[Piece], cache: TokenCache, limit: PromptLimit) -> None:
    """Reject a prompt that is too long to be tokenized, which may have very many pieces."""
    characters = 0
    for start in range(0, len(pieces), COUNTED_PIECES):
        part = pieces[start : start + COUNTED_PIECES]
        characters += sum(len(piece) for piece in part if isinstance(piece, str))
        limit.check_characters(characters)
        if len(part) == COUNTED_PIECES:
            await cache.work.add(COUNTED_PIECES)


def _count_leading(ids: array[int], token: int) -> int:
    """Count how often a token is repeated at the start, many at a time while possible."""
    many = array("i", [token]) * COMPARED_IDS
    count = 0
    while ids[count : count + COMPARED_IDS] == many:
        count += COMPARED_IDS
    while count < len(ids) and ids[count] == token:
        count += 1
    return count


def _fix_bos(prompt: EncodedPrompt, tokenizer: TextEncoder) -> EncodedPrompt:
    """Start the prompt with exactly one BOS token if the model uses one."""
    bos, ids = tokenizer.bos_id, prompt.ids
    if bos is None or not tokenizer.add_bos or not ids:
        return prompt
    first = _count_leading(ids, bos)
    start = None if prompt.answer_start is None else prompt.answer_start + 1 - first
    return EncodedPrompt(array("i", [bos]) + ids[first:], prompt.cached_tokens, start)
