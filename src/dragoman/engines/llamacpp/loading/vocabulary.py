"""Reads the vocabulary of a GGUF file: the bytes of its tokens, and the kinds of tokens."""

from __future__ import annotations

import logging

from dragoman.engines.llamacpp.choice import GgufVocabulary
from dragoman.engines.llamacpp.gguf import GgufHeader

log = logging.getLogger("dragoman.llamacpp")

# token types in a GGUF file
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
SPECIAL_KINDS = (UNKNOWN, CONTROL, USER_DEFINED)


def read_vocabulary(header: GgufHeader) -> GgufVocabulary:
    """Return the bytes of the tokens, where they can be rebuilt, and a few useful tokens."""
    from dragoman.tokenizers.from_gguf import pieces_from_gguf

    size = len(header.tokens)
    types = header.metadata.get("tokenizer.ggml.token_type", ())
    control_ids = tuple(token for token, kind in enumerate(types) if kind == CONTROL)
    special_ids = frozenset(token for token, kind in enumerate(types) if kind in SPECIAL_KINDS)
    try:
        pieces = pieces_from_gguf(header.metadata)
    except Exception as error:
        log.warning("cannot rebuild the vocabulary, so tokens are reported as text: %r", error)
        return GgufVocabulary(size, frozenset(), control_ids=control_ids)
    ordinary_id = next(
        (token for token, piece in enumerate(pieces) if piece.isalpha() and piece.isascii()), 0
    )
    return GgufVocabulary(size, frozenset(), pieces, ordinary_id, control_ids, special_ids)
