"""Matches a text against a grammar: for scripts, and for tests of grammars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import BadRequest, EngineFailed
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.types import Job

BYTE_PIECES = tuple(bytes([byte]) for byte in range(256))


@lru_cache(maxsize=8)
def _create_byte_masker(control: tuple[str, ...]) -> TokenMasker:
    """Create a masker over bytes and control tokens; the last token of all ends a text."""
    pieces = (*BYTE_PIECES, *(text.encode() for text in control), b"<|end|>")
    return TokenMasker(pieces, {len(pieces) - 1}, range(256, len(pieces)))


def match_grammar(grammar: str, text: str, control: Sequence[str] = ()) -> tuple[bool, int]:
    """Return whether a grammar allows the whole text, and how many tokens of it.

    The tokens of `control` have the ids from 256 on; they are recognized in the text.
    """
    tokenizer = ByteTokenizer(tuple(control)) if control else None
    ids = list(text.encode()) if tokenizer is None else tokenizer.encode_with_specials(text)
    state = _create_byte_masker(tuple(control)).start_grammar(grammar)
    for index, token in enumerate(ids):
        try:
            state.advance(token)
        except BadRequest:
            return False, index
    return state.is_accepting, len(ids)


def check_script(
    job: Job, pieces: Sequence[str] | Sequence[list[int]], tokenizer: ByteTokenizer | None
) -> None:
    """Raise `EngineFailed` if the pieces of a script break the grammar of a job."""
    limit = job.sampling.max_tokens
    count = sum(len(piece) if isinstance(piece, list) else 1 for piece in pieces)
    is_cut = limit is not None and count >= limit
    ids: list[int] = []
    for piece in pieces[:limit] if is_cut else pieces:
        ids += piece if isinstance(piece, list) else list(piece.encode())
    eos_ids = frozenset() if tokenizer is None else tokenizer.eos_ids
    ids = [token for token in ids if token not in eos_ids]
    if tokenizer is None:
        masker = _create_byte_masker(())
    else:
        masker = TokenMasker(tokenizer.pieces, tokenizer.eos_ids, tokenizer.control)
    state = masker.start_grammar(job.grammar or "")
    for index, token in enumerate(ids):
        try:
            state.advance(token)
        except BadRequest:
            before = bytes(token for token in ids[:index] if token < 256)[-40:]
            raise EngineFailed(
                f"The script breaks its grammar after {before.decode(errors='replace')!r}."
            ) from None
    if not is_cut and not state.is_accepting:
        raise EngineFailed("The script ends before its grammar does.")
