"""A vocabulary small enough to hold in one's head: every byte is a token.

Ids 0 … 255 are the bytes themselves, so that any text can be said and any character of more than
one byte can be cut. A few special tokens follow, spelled as chat templates spell them. It is a
model's tokenizer in every respect but the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from dragoman.tokenizers.tokenizer import Tokenizer
from dragoman.tokenizers.vocabulary import BYTE_LETTERS, Vocabulary

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class ByteTokenizer(Tokenizer):
    """Bytes as ids, then control tokens, then markup.

    The first control token begins a text and the last one ends a turn. Markup tokens are whole
    too, but they are shown.
    """

    def __init__(
        self,
        specials: Sequence[str] = SPECIALS,
        *,
        markup: Sequence[str] = (),
        add_bos: bool = False,
    ) -> None:
        whole = [*specials, *markup]
        ids = {text: 256 + at for at, text in enumerate(whole)}
        ends = ids[specials[-1]] if specials else None
        vocabulary = Vocabulary(
            pieces=[bytes([byte]) for byte in range(256)] + [text.encode() for text in whole],
            specials=ids,
            control=frozenset(ids[text] for text in specials),
            bos_id=ids[specials[0]] if specials else None,
            eos_id=ends,
            eos_ids=frozenset() if ends is None else frozenset({ends}),
            add_bos=add_bos and bool(specials),
            variables={"bos_token": specials[0], "eos_token": specials[-1]} if specials else {},
            source="bytes",
        )
        super().__init__(vocabulary, _backend())
        choices = "|".join(map(re.escape, sorted(whole, key=len, reverse=True)))
        self._split = re.compile(f"({choices})") if whole else None

    def split_specials(self, text: str) -> list[str]:
        """The text cut around its special tokens, which stay as parts of their own."""
        return [part for part in self._split.split(text) if part] if self._split else [text]

    def encode_with_specials(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are written out."""
        ids: list[int] = []
        for part in self.split_specials(text):
            known = self.specials.get(part)
            ids.extend(part.encode() if known is None else (known,))
        return ids


def _backend() -> Backend:
    """Merges nothing, so that what is left of a text is its bytes."""
    backend = Backend(models.BPE(vocab=dict(BYTE_LETTERS), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return backend
