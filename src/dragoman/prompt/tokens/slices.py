"""Tokenizes long texts slice by slice, with the same ids as in one piece.

A tokenizer needs hundreds of bytes for each token of a text until it has finished, so a long text
is cut into slices, and tokenizing stops as soon as there are too many tokens.

Tokenizers cut a text into words before they do anything else, so a slice may end where a word does.
Which places those are depends on the tokenizer. Candidates are places where the kind of character
changes; before one is used, the tokenizer must give the same ids for the text around it in one
piece and in two. A word that is longer than `MAX_BYTES` is cut between two of its tokens, if what
follows them has the same ids by itself. If there is no such place, the word is cut anyway: its ids
then differ there from those in one piece, but its cost is bounded.

A tokenizer that puts a space before every text reads a slice without its first space in the same
way as the whole text with it. It can only be cut at spaces.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import AsyncIterator, Iterator

from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.prompt.tokens.text_encoder import TextEncoder

SLICE = 1 << 14  # characters
MAX_BYTES = 1 << 17  # of a slice, in UTF-8
MAX_TRIES = 4  # places of one kind that are tried in a slice
CONTEXT = 48  # characters on each side of a place that are tokenized to check it
CHECKED_BYTES = 2_048  # bytes after a place inside a word that are tokenized to check it
# Where words probably end: before a space; between a letter and a line end, a digit or punctuation
# other than an apostrophe, or between a digit and a letter
_WORD_ENDS = (
    re.compile(r"\S(?= \S)"),
    re.compile("[^\\W\\d_](?=[\\n\\d]|[^\\w\\s'\u2019])|\\d(?=[^\\W\\d_])"),
)


async def encode_text(
    text: str, tokenizer: TextEncoder, limit: PromptLimit, earlier_tokens: int = 0
) -> list[int] | array[int]:
    """Return the ids of a text, which follows on `earlier_tokens` of the same prompt.

    Those of a long text are packed: to pack them all at once would keep the event loop waiting.
    """
    if len(text) <= SLICE:
        return await tokenizer.encode(text)
    limit.check_characters(len(text))
    ids = array("i")
    async for part in _encode_slices(text, tokenizer):
        limit.check_tokens(earlier_tokens + len(ids))
        ids.extend(part)
    return ids


async def _encode_slices(text: str, tokenizer: TextEncoder) -> AsyncIterator[list[int]]:
    start = 0
    while len(text) - start > SLICE:
        longest = _limit_slice(text, start)
        cut = await _find_word_end(text, start, start + longest, tokenizer)
        if cut is not None:
            end, skipped = cut
            yield await tokenizer.encode(text[start:end])
            start = end + skipped
        elif len(text) - start <= longest:
            break
        else:
            slice_text = text[start : start + longest]
            ids, end = await _cut_word(slice_text, await tokenizer.encode(slice_text), tokenizer)
            yield ids
            start += end
    yield await tokenizer.encode(text[start:])


def _limit_slice(text: str, start: int) -> int:
    """Return how many characters the longest slice may have, which begins at `start`."""
    sample = text[start : start + MAX_BYTES]
    return MAX_BYTES if sample.isascii() else MAX_BYTES // 4


async def _find_word_end(
    text: str, start: int, limit: int, tokenizer: TextEncoder
) -> tuple[int, int] | None:
    """Return where to end a slice, and how many characters to skip there.

    The slice is as close to the usual length as possible; `limit` is where it must end.
    """
    first, last = start + SLICE // 2, start + SLICE
    while first < min(limit, len(text)):
        for place in _list_word_ends(text, first, min(last, limit)):
            skipped = await _check_place(text, place, tokenizer)
            if skipped is not None:
                return place, skipped
        first, last = last, last + (last - start)
    return None


def _list_word_ends(text: str, first: int, last: int) -> Iterator[int]:
    """Yield some places between the two indices where a word probably ends, the last ones first."""
    for pattern in _WORD_ENDS:
        for begin in (max(first, last - 512), first):
            places = [match.end() for match in pattern.finditer(text, begin, last)]
            if places:
                yield from reversed(places[-MAX_TRIES:])
                break


async def _check_place(text: str, place: int, tokenizer: TextEncoder) -> int | None:
    """Return how many characters to skip if a text can be cut at a place, else None."""
    left, right = text[place - CONTEXT : place], text[place : place + CONTEXT]
    whole, left_ids = await tokenizer.encode(left + right), await tokenizer.encode(left)
    for skipped in (0, 1) if right.startswith(" ") else (0,):
        if whole == left_ids + await tokenizer.encode(right[skipped:]):
            return skipped
    return None


async def _cut_word(text: str, ids: list[int], tokenizer: TextEncoder) -> tuple[list[int], int]:
    """Cut a slice inside a word: its ids up to a place, and the place.

    What follows the place is tokenized by itself and must have the ids that it has in the slice.
    """
    data = text.encode("utf-8", "replace")
    end = sum(len(tokenizer.pieces[token]) for token in ids)
    if end != len(data):  # the tokenizer changes texts, so it is not known where tokens are
        return ids, len(text)
    tried = 0
    for index in range(len(ids) - 1, 0, -1):
        end -= len(tokenizer.pieces[ids[index]])
        if len(data) - end < CHECKED_BYTES or data[end] & 0xC0 == 0x80:
            continue
        if await tokenizer.encode(data[end:].decode()) == ids[index:]:
            return ids[:index], len(data[:end].decode())
        tried += 1
        if tried == MAX_TRIES:
            break
    return ids, len(text)
