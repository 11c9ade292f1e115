"""Encodes short texts faster, by looking up the words that are one token.

Most tokenizers split a text into words before anything else, and the tokens of a word do not depend
on the words around it. So words that are known to be one token are taken out of a text, the rest
is encoded in one call, and the tokens are put together again. How many bytes each token stands for
tells where the rest was cut.

A text is cut only before a single space between two ASCII letters. `make_word_encoder` tries out
whether a tokenizer always splits there, with all pairs of letters. It returns None for a tokenizer
that does not, that matches tokens across such a place before it splits, or that changes text.

Texts whose words are mostly unknown are encoded as a whole, which is faster. So are those of much
punctuation. Words are learnt from such texts, from all of them as long as each has many new words,
else now and then. Only words of one token are kept, so there are never more than the vocabulary
has, and no client can replace the words of another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import chain, product
from string import ascii_letters

from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend

MAX_WORDS = 100_000  # that are kept
MAX_UNKNOWN = 8  # one of so many words may be unknown
PAUSE = 16  # texts, after one that had few new words
UNKNOWN = -1
SPLITTING = ("Split", "ByteLevel", "Digits")  # pre-tokenizers that change no text
COMPOSING = ("NFC", "NFKC")  # normalizers that change no ASCII text
LENGTHS = (1, 2, 6)  # of the words that are tried out
LETTERS = frozenset(ascii_letters)
_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_WORD = re.compile(r" [A-Za-z]{1,24}")  # that is kept

EncodeText = Callable[[str], list[int]]
Span = tuple[int, int]  # of words: the first one, and the one after the last


class WordEncoder:
    """Encodes ASCII texts; `encode_text` encodes what lies between the known words."""

    def __init__(self, encode_text: EncodeText, pieces: Sequence[bytes]) -> None:
        self._encode_text = encode_text
        self._pieces = pieces
        self._known: dict[str, int] = {}  # tokens of words after a space
        self._pause = 0  # texts from which nothing is learnt

    def __len__(self) -> int:
        return len(self._known)

    def encode(self, text: str) -> list[int]:
        words, known = text.split(" "), self._known
        found = [known.get(word, UNKNOWN) for word in words]
        found[0] = UNKNOWN  # no space comes before it
        count = found.count(UNKNOWN)
        if count * MAX_UNKNOWN <= len(words) + MAX_UNKNOWN:
            return self._encode_rest(words, found)
        if self._pause:
            self._pause -= 1
            return self._encode_text(text)
        before = len(known)
        ids = self._encode_rest(words, found)
        self._pause = PAUSE if (len(known) - before) * MAX_UNKNOWN < len(words) else 0
        return ids

    def _encode_rest(self, words: list[str], found: list[int]) -> list[int]:
        """Encode the words that were not found, and put them in their places."""
        spans = _find_spans(words, found)
        texts = [_join(words, span) for span in spans]
        rest = self._encode_text("".join(texts))
        ids: list[int] = []
        taken = last = 0
        for (start, end), text in zip(spans, texts, strict=True):
            stop = self._find_end(rest, taken, text)
            if stop is None:  # a token stands for other bytes than those of the text
                return self._encode_text(" ".join(words))
            ids += found[last:start]
            ids += rest[taken:stop]
            if stop == taken + 1 and _WORD.fullmatch(text) and len(self._known) < MAX_WORDS:
                self._known[text[1:]] = rest[taken]
            taken, last = stop, end
        return ids + found[last:]

    def _find_end(self, ids: list[int], start: int, text: str) -> int | None:
        """Return where the tokens of a text end; None if no token ends there."""
        size = len(text)
        for index in range(start, len(ids)):
            size -= len(self._pieces[ids[index]])
            if size <= 0:
                return index + 1 if size == 0 else None
        return start if size == 0 else None


def _find_spans(words: list[str], found: list[int]) -> list[Span]:
    """Return the words to encode: those not found, and those that they must not be cut from."""
    spans: list[Span] = []
    last = 0
    for index, token in enumerate(found):
        if token != UNKNOWN or index < last:
            continue
        start, end = index, index + 1
        while start > last and not _can_cut(words, start):
            start -= 1
        while end < len(words) and not _can_cut(words, end):
            end += 1
        spans.append((start, end))
        last = end
    return spans


def _can_cut(words: list[str], index: int) -> bool:
    """Whether a text may be cut before the space before this word."""
    return words[index - 1][-1:] in LETTERS and words[index][:1] in LETTERS


def _join(words: list[str], span: Span) -> str:
    """Return the text of some words, with the space before it."""
    start, end = span
    return " ".join(words[start:end] if start == 0 else ["", *words[start:end]])


def make_word_encoder(
    backend: Backend, encode_text: EncodeText, pieces: Sequence[bytes]
) -> WordEncoder | None:
    """Return an encoder of ASCII texts, or None if it could give other tokens.

    `pieces` are the bytes that each token stands for.
    """
    is_plain = (
        isinstance(backend.model, models.BPE)
        and not backend.model.dropout
        and backend.model.unk_token is None
        and _composes_at_most(backend)
        and not any(map(_joins_words, backend.get_added_tokens_decoder().values()))
    )
    return WordEncoder(encode_text, pieces) if is_plain and _splits_words(backend) else None


def _composes_at_most(backend: Backend) -> bool:
    """Whether no normalizer changes ASCII text."""
    if backend.normalizer is None:
        return True
    normalizer = json.loads(backend.normalizer.__getstate__())
    return all(step["type"] in COMPOSING for step in normalizer.get("normalizers", [normalizer]))


def _joins_words(added: AddedToken) -> bool:
    """Whether an added token, which is matched before the text is split, may lie across a cut.

    Or whether it stands for more bytes than its own.
    """
    text = added.content
    if text.isspace():
        return len(text) == 1
    return added.lstrip or added.rstrip or any(map(str.isspace, text))


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
