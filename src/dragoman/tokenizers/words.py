"""Encodes short texts from words that were encoded before.

Most tokenizers split a text into words before anything else, and the tokens of a word do not depend
on the words around it. So the tokens of words are kept, and a short text is put together from them:
to look a word up takes a tenth of the time in which the tokenizer encodes it.

A text is cut only before a single space between two ASCII letters. `make_word_encoder` tries out
whether a tokenizer always splits there, with all pairs of letters. It returns None for a tokenizer
that does not, or that matches tokens across such a place before it splits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import chain, product
from string import ascii_letters

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

MAX_WORDS = 20_000  # that are kept
MAX_WORD = 24  # characters of a word that is kept
SPLITTING = ("Split", "ByteLevel", "Digits")  # pre-tokenizers that change no text
COMPOSING = ("NFC", "NFKC")  # normalizers that change no ASCII text, and nothing beside it
LENGTHS = (1, 2, 6)  # of the words that are tried out
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")

EncodeAll = Callable[[list[str]], Iterable[list[int]]]


class WordEncoder:
    """Encodes texts; `encode_all` encodes the words that it has not seen yet."""

    def __init__(self, encode_all: EncodeAll) -> None:
        self._encode_all = encode_all
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def encode(self, text: str) -> list[int]:
        words = _CUT.split(text)
        found = [*map(self._known.get, words)]
        missing = [word for word, ids in zip(words, found, strict=True) if ids is None]
        if missing:
            new = self._encode_missing(missing)
            found = [
                new[word] if ids is None else ids for word, ids in zip(words, found, strict=True)
            ]
        return [*chain.from_iterable(ids for ids in found if ids)]

    def _encode_missing(self, missing: list[str]) -> dict[str, list[int]]:
        """Encode words, and keep those that are short."""
        new = dict(zip(missing, self._encode_all(missing), strict=True))
        if len(self._known) + len(new) > MAX_WORDS:
            self._known = {}
        self._known.update(item for item in new.items() if len(item[0]) <= MAX_WORD)
        return new


def make_word_encoder(backend: Backend, encode_all: EncodeAll) -> WordEncoder | None:
    """Return an encoder, or None if the tokens of a word may depend on its neighbours."""
    is_plain = (
        isinstance(backend.model, models.BPE)
        and not backend.model.dropout
        and _composes_at_most(backend)
        and not any(map(_joins_words, backend.get_added_tokens_decoder().values()))
    )
    return WordEncoder(encode_all) if is_plain and _splits_words(backend) else None


def _composes_at_most(backend: Backend) -> bool:
    """Whether no normalizer changes ASCII text."""
    if backend.normalizer is None:
        return True
    normalizer = json.loads(backend.normalizer.__getstate__())
    return all(step["type"] in COMPOSING for step in normalizer.get("normalizers", [normalizer]))


def _joins_words(added: AddedToken) -> bool:
    """Whether an added token, which is matched before the text is split, may lie across a cut."""
    text = added.content
    if text.isspace():
        return len(text) == 1
    return added.rstrip or any(map(str.isspace, text))


def _splits_words(backend: Backend) -> bool:
    """Whether the tokenizer splits at every cut, with any two letters beside it."""
    if backend.pre_tokenizer is None:
        return False
    splitter = json.loads(backend.pre_tokenizer.__getstate__())
    steps = splitter.get("pretokenizers", [splitter])
    if not all(step["type"] in SPLITTING for step in steps):
        return False
    for length in LENGTHS:
        letters = chain.from_iterable(product(ascii_letters, repeat=2))
        text = " ".join(letter * length for letter in letters)
        parts = backend.pre_tokenizer.pre_tokenize_str(text)
        starts = {start for _, (start, _) in parts}
        if not all(match.start() in starts for match in _CUT.finditer(text)):
            return False
    return True
