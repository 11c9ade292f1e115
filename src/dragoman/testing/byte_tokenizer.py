"""A small vocabulary in which every byte is a token.

Ids 0 … 255 are the bytes themselves, so that every text can be written and every character of
several bytes can be cut. A few special tokens follow, named as chat templates name them. It is a
complete tokenizer; only the model file is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from dragoman.tokenizers.tokenizer import Tokenizer
from dragoman.tokenizers.vocabulary import BYTE_CHARACTERS, Vocabulary, find_infill_tokens

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class ByteTokenizer(Tokenizer):
    """Bytes as ids, then control tokens, then markup tokens.

    The first control token begins a text and the last one ends a turn. Markup tokens are single
    tokens, too, but they are visible text.
    """

    def __init__(
        self,
        specials: Sequence[str] = SPECIALS,
        *,
        markup: Sequence[str] = (),
        add_bos: bool = False,
    ) -> None:
        texts = [*specials, *markup]
        ids = {text: 256 + index for index, text in enumerate(texts)}
        eos_id = ids[specials[-1]] if specials else None
        vocabulary = Vocabulary(
            pieces=[bytes([byte]) for byte in range(256)] + [text.encode() for text in texts],
            specials=ids,
            control=frozenset(ids[text] for text in specials),
            bos_id=ids[specials[0]] if specials else None,
            eos_id=eos_id,
            eos_ids=frozenset() if eos_id is None else frozenset({eos_id}),
            add_bos=add_bos and bool(specials),
            variables={"bos_token": specials[0], "eos_token": specials[-1]} if specials else {},
            source="bytes",
            infill=find_infill_tokens({}, ids),
        )
        super().__init__(vocabulary, _create_backend())
        alternatives = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
        self._special_pattern = re.compile(f"({alternatives})") if texts else None

    def split_specials(self, text: str) -> list[str]:
        """Split the text around its special tokens, each of which is a part of its own."""
        if self._special_pattern is None:
            return [text]
        return [part for part in self._special_pattern.split(text) if part]

    def encode_with_specials(self, text: str) -> list[int]:
        """Return the ids of a text in which special tokens are written out."""
        ids: list[int] = []
        for part in self.split_specials(text):
            special_id = self.specials.get(part)
            ids.extend(part.encode() if special_id is None else (special_id,))
        return ids


def _create_backend() -> Backend:
    """Create a backend that merges nothing, so that its tokens are bytes."""
    backend = Backend(models.BPE(vocab=dict(BYTE_CHARACTERS), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return backend
