"""Text to token ids and back, without asking the engine.

`Tokenizer` encodes plain text only: it never produces control tokens or the special tokens of a
chat format, whatever the text is. The prompt renderer splits a rendered template at `specials` and
passes the texts between them to `encode`. Short texts are encoded at once, long ones in a thread.

The tokenizer is rebuilt from the model's own file. When the model is loaded, `verify_tokenizer`
compares it with the engine's tokenizer on texts chosen to distinguish tokenizers. If they differ
anywhere, an `EngineTokenizer` replaces it, which has the same interface but asks the engine each
time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from tokenizers import Tokenizer as Backend
from tokenizers import models

from dragoman.errors import ModelBroken
from dragoman.tokenizers.from_gguf import backend_from_gguf, vocabulary_from_gguf
from dragoman.tokenizers.from_json import (
    TokenizerFiles,
    make_backend,
    make_vocabulary,
    read_directory,
)
from dragoman.tokenizers.vocabulary import Vocabulary
from dragoman.tokenizers.words import make_word_encoder
from dragoman.types.worker_threads import run_in_worker

log = logging.getLogger("dragoman.tokenizers")

MAX_INLINE_CHARACTERS = 4_000  # that may be encoded on the event loop: a few milliseconds

# Steps of normalizers that at most add characters or replace single ones, as ours do
KEEPING_STEPS = ("Prepend", "Replace")
EngineTokenize = Callable[[str, bool], Awaitable[list[int]]]


class TextEngine(Protocol):
    """An engine that can tokenize text."""

    async def tokenize(self, text: str, special: bool) -> list[int]: ...


class _BaseTokenizer:
    """The vocabulary, which every tokenizer has."""

    keeps_text = False  # whether the tokens of a text are all of its characters, none left out

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.pieces = vocabulary.pieces
        self.specials = vocabulary.specials
        self.control = vocabulary.control
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.eos_ids
        self.add_bos = vocabulary.add_bos
        self.variables = vocabulary.variables
        self.rstrip = vocabulary.rstrip
        self.source = vocabulary.source
        self.infill = vocabulary.infill
        self.vocabulary = vocabulary

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of all ids, special tokens included; unknown ids are skipped."""
        pieces, size = self.pieces, len(self.pieces)
        data = b"".join(pieces[token] for token in ids if 0 <= token < size)
        return data.decode("utf-8", "replace")


class Tokenizer(_BaseTokenizer):
    """A tokenizer for plain text that runs in this process."""

    def __init__(self, vocabulary: Vocabulary, backend: Backend) -> None:
        super().__init__(vocabulary)
        self._backend = backend
        self.keeps_text = _keeps_text(backend)
        self._words = make_word_encoder(backend, self.encode_now, vocabulary.pieces)

    def serialize_backend(self) -> str:
        """Return the text of a `tokenizer.json`, see `serialize`."""
        return str(self._backend.to_str())

    def encode_now(self, text: str) -> list[int]:
        if not text:
            return []
        return self._encode_all([text if text.isascii() else _replace_surrogates(text)])[0]

    async def encode(self, text: str) -> list[int]:
        if len(text) > MAX_INLINE_CHARACTERS:
            return await run_in_worker(self.encode_now, text)
        if self._words is None or not text.isascii():
            return self.encode_now(text)
        return self._words.encode(text)

    def _encode_all(self, texts: list[str]) -> list[list[int]]:
        # the batch call releases the GIL while it works
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


class EngineTokenizer(_BaseTokenizer):
    """The engine's tokenizer with the same interface, for tokenizers that cannot be rebuilt."""

    def __init__(self, vocabulary: Vocabulary, engine: TextEngine) -> None:
        super().__init__(vocabulary)
        self.source = "engine"
        self._engine = engine
        self._special_texts = {token: text for text, token in vocabulary.specials.items()}
        self._plain_ids: dict[int, list[int]] = {}  # of the texts of special tokens

    def encode_now(self, text: str) -> list[int]:
        raise NotImplementedError("the engine encodes asynchronously: use encode()")

    async def encode(self, text: str) -> list[int]:
        if not text:
            return []
        ids = await self._engine.tokenize(_replace_surrogates(text), False)
        return (
            ids
            if self._special_texts.keys().isdisjoint(ids)
            else await self._encode_specials_as_text(ids)
        )

    async def _encode_specials_as_text(self, ids: list[int]) -> list[int]:
        """Engines match some special tokens in plain text; encode those as ordinary tokens."""
        plain: list[int] = []
        for token in ids:
            text = self._special_texts.get(token)
            if text is None:
                plain.append(token)
            else:
                plain += await self._encode_as_text(token, text)
        return plain

    async def _encode_as_text(self, token: int, text: str) -> list[int]:
        """Return the ordinary tokens of a special token's text."""
        known = self._plain_ids.get(token)
        if known is None:
            halves = [
                half
                for part in (text[:1], text[1:])
                for half in await self._engine.tokenize(part, False)
            ]
            known = [half for half in halves if half not in self._special_texts]
            self._plain_ids[token] = known
        return known


AnyTokenizer = Tokenizer | EngineTokenizer


def _keeps_text(backend: Backend) -> bool:
    """Whether a backend neither drops nor combines characters, and has tokens for all of them."""
    if not isinstance(backend.model, models.BPE) or backend.model.unk_token is not None:
        return False
    if backend.normalizer is None:
        return True
    normalizer = json.loads(backend.normalizer.__getstate__())
    steps = normalizer.get("normalizers", [normalizer])
    return all(step["type"] in KEEPING_STEPS for step in steps)


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def tokenizer_from_gguf(
    metadata: Mapping[str, object], engine: TextEngine | None = None
) -> AnyTokenizer | None:
    """Return the tokenizer of a GGUF file, or the engine's if it cannot be rebuilt."""
    return _choose_tokenizer(vocabulary_from_gguf(metadata), backend_from_gguf(metadata), engine)


def tokenizer_from_directory(path: Path, engine: TextEngine | None = None) -> AnyTokenizer | None:
    """Return the tokenizer of a model directory with a `tokenizer.json`."""
    return tokenizer_from_files(read_directory(path), engine)


def tokenizer_from_files(
    files: TokenizerFiles, engine: TextEngine | None = None
) -> AnyTokenizer | None:
    try:
        return _choose_tokenizer(make_vocabulary(files), make_backend(files), engine)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        log.warning("the tokenizer files are malformed: %r", error)
        raise ModelBroken("The model's tokenizer.json cannot be used.") from None


def _choose_tokenizer(
    vocabulary: Vocabulary, backend: Backend | None, engine: TextEngine | None
) -> AnyTokenizer | None:
    if backend is not None:
        return Tokenizer(vocabulary, backend)
    return EngineTokenizer(vocabulary, engine) if engine is not None and vocabulary.pieces else None


class TokenizerDifference(Struct, frozen=True):
    """A text on which two tokenizers differ."""

    text: str
    ours: list[int]
    theirs: list[int]


# No rare spaces: the engine treats some of them differently from the model's own tokenizer
PROBES = (
    "Hello world",
    " leading and trailing ",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they'll say we'd've DON'T you'RE it'S",
    "tabs\tand\t\ttabs",
    "  two   three    four     five",
    " " * 40 + "x" + " " * 7,
    "line\nline\n\nline\n\n\n\nline\r\nline\r\n\r\n",
    "trailing newline\n",
    "\n",
    " \n \n  \n",
    "a \n b\t\n c  \n\n  d",
    "1 12 123 1234 12345 123456 1234567890",
    "3.14159, 1,000,000 and 2^10 = 0x400",
    "v1.2.3-beta+build.456",
    "def f(x: int) -> str:\n    return f'{x:>10}' if x != 0 else \"\"\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; } // loop\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_y%';",
    '{"name": "caf\u00e9", "tags": ["a", "b"], "n": null}',
    "https://example.org/path?q=1&r=%20#frag user@example.org",
    "!!!???...---===+++***///\\\\\\|||~~~```",
    "(a) [b] {c} <d> \u00ab e \u00bb \u201cf\u201d \u2018g\u2019",
    "camelCaseXMLHttpRequest SCREAMING_SNAKE kebab-case",
    "na\u00efve fa\u00e7ade \u00c5ngstr\u00f6m \u0141\u00f3d\u017a \u0130stanbul stra\u00dfe",
    "e\u0301 a\u0300 combining n\u0303",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430?",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6211\u6709123\u4e2a\u82f9\u679c",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u30ab\u30bf\u30ab\u30ca",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 42\uac1c",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0967\u0968\u0969",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \u2764\ufe0f ok",
    "\u00a0nbsp \u200bzero\u00a0",
    "\u2211 x\u00b2 \u2264 \u221e \u20ac100 \u00a350 \u00bd \u2167",
    "\ufffd \ufeff \u0000 \u0007",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "word " * 30,
    "MixedCASE123abc_DEF-456.ghi",
    "'quoted' \"double\" `back` ''s '' 's",
)


async def compare_with_engine(
    tokenizer: Tokenizer, tokenize: EngineTokenize
) -> list[TokenizerDifference]:
    """Return the texts for which our ids differ from the engine's."""
    differences = []
    for text in PROBES:
        ours, theirs = tokenizer.encode_now(text), await tokenize(text, False)
        if ours != theirs:
            differences.append(TokenizerDifference(text, ours, list(theirs)))
    return differences


async def verify_tokenizer(tokenizer: AnyTokenizer, engine: TextEngine) -> AnyTokenizer:
    """Return the tokenizer if it agrees with the engine's, else the engine's."""
    if not isinstance(tokenizer, Tokenizer):
        return tokenizer
    differences = await compare_with_engine(tokenizer, engine.tokenize)
    if not differences:
        return tokenizer
    log.warning(
        "the tokenizer differs from the engine's on %d of %d texts, first on %r: "
        "using the engine's",
        len(differences),
        len(PROBES),
        differences[0].text,
    )
    return EngineTokenizer(tokenizer.vocabulary, engine)
