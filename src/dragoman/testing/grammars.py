"""Whether a text keeps to a grammar: for scripts, and for tests of grammars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dragoman.engines.token_mask import TokenMasker
from dragoman.errors import BadRequest, EngineFailed
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.types import Job

BYTE_PIECES = tuple(bytes([byte]) for byte in range(256))


@lru_cache(maxsize=8)
def _masker(control: tuple[str, ...]) -> TokenMasker:
    """A masker over bytes and control tokens; the last token of all ends a text."""
    pieces = (*BYTE_PIECES, *(text.encode() for text in control), b"<|end|>")
    return TokenMasker(pieces, {len(pieces) - 1}, range(256, len(pieces)))


def match_grammar(grammar: str, text: str, control: Sequence[str] = ()) -> tuple[bool, int]:
    """Whether a grammar allows a text as a whole, and how many bytes of it.

    Tokens of `control` have the numbers from 256 on, and are told from letters in the text.
    """
    tokenizer = ByteTokenizer(tuple(control)) if control else None
    ids = list(text.encode()) if tokenizer is None else tokenizer.encode_with_specials(text)
    following = _masker(tuple(control)).start_grammar(grammar)
    for at, token in enumerate(ids):
        try:
            following.advance(token)
        except BadRequest:
            return False, at
    return following.is_accepting, len(ids)


def check_script(
    job: Job, pieces: Sequence[str] | Sequence[list[int]], tokenizer: ByteTokenizer | None
) -> None:
    """`EngineFailed` if what a script says for a job is not what its grammar allows."""
    limit = job.sampling.max_tokens
    said, ended = pieces, True
    if (
        limit is not None
        and sum(len(one) if isinstance(one, list) else 1 for one in pieces) >= limit
    ):
        said, ended = pieces[:limit], False
    ids: list[int] = []
    for one in said:
        ids += one if isinstance(one, list) else list(one.encode())
    ends = frozenset() if tokenizer is None else tokenizer.eos_ids
    ids = [token for token in ids if token not in ends]
    if tokenizer is None:
        masker = _masker(())
    else:
        masker = TokenMasker(tokenizer.pieces, tokenizer.eos_ids, tokenizer.control)
    following = masker.start_grammar(job.grammar or "")
    for at, token in enumerate(ids):
        try:
            following.advance(token)
        except BadRequest:
            before = bytes(token for token in ids[:at] if token < 256)[-40:]
            raise EngineFailed(
                f"The script leaves its grammar after {before.decode(errors='replace')!r}."
            ) from None
    if ended and not following.is_accepting:
        raise EngineFailed("The script ends before its grammar does.")
