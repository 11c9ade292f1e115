"""Encodes pairs of texts for a model that scores them: with special tokens, or with a template.

The texts of a client never become special tokens, whatever they contain. In a template, its own
special tokens are found before the texts are inserted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dragoman.prompt.special_tokens import make_trie_pattern
from dragoman.prompt.tokens.encoding import encode_pieces
from dragoman.prompt.tokens.limit import PromptLimit
from dragoman.prompt.tokens.token_cache import TokenCache
from dragoman.tokenizers.text_format import DOCUMENT, QUERY, TextFormat
from dragoman.tokenizers.tokenizer import AnyTokenizer
from dragoman.types.text_pair import TextPair

_PLACES = re.compile(f"{re.escape(QUERY)}|{re.escape(DOCUMENT)}")


def get_text_format(tokenizer: AnyTokenizer | None) -> TextFormat:
    """Return what is put around a text to embed or score."""
    return TextFormat() if tokenizer is None else tokenizer.vocabulary.get_text_format()


def join_texts(query: Sequence[int], document: Sequence[int], text_format: TextFormat) -> TextPair:
    """Put special tokens around the tokens of two texts."""
    head = [*text_format.pair_start, *query, *text_format.pair_middle]
    return TextPair(
        [*head, *document, *text_format.pair_end], len(head) if text_format.has_types else None
    )


class PairTemplate:
    """A template of pairs, which contains each text once or more."""

    def __init__(self, template: str, tokenizer: AnyTokenizer, cache: TokenCache) -> None:
        specials = [text for text in tokenizer.specials if text]
        # alternately plain text and special tokens
        self._pieces = (
            re.split(f"({make_trie_pattern(specials)})", template) if specials else [template]
        )
        self._tokenizer = tokenizer
        self._cache = cache

    async def encode(self, query: str, document: str, limit: PromptLimit) -> list[int]:
        """Return the tokens of the template with two texts in it."""
        texts = {QUERY: query, DOCUMENT: document}
        pieces = [
            piece if index % 2 else _PLACES.sub(lambda match: texts[match[0]], piece)
            for index, piece in enumerate(self._pieces)
        ]
        encoded = await encode_pieces(
            pieces, self._tokenizer, self._cache, fix_bos=False, limit=limit
        )
        return encoded.ids.tolist()
