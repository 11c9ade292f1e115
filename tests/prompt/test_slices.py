"""Long texts are tokenized slice by slice: the same ids as in one piece, bounded work."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from dragoman.engines.llamacpp import gguf
from dragoman.errors import BadRequest
from dragoman.prompt.tokens import slices
from dragoman.prompt.tokens.limit import PromptLimit, make_limit, measure_longest_token
from dragoman.prompt.tokens.slices import encode_text
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.tokenizers.from_object import adapt_tokenizer
from dragoman.tokenizers.pretokenizers import PRETOKENIZERS
from dragoman.tokenizers.tokenizer import (
    PROBES,
    EngineTokenizer,
    Tokenizer,
    tokenizer_from_gguf,
)
from tests.support.tokenizer_oracle import (
    train_byte_level_vocabulary,
    train_scored_vocabulary,
    write_tiny_model,
)

ONE_OF_EACH = {pretokenizer: name for name, pretokenizer in reversed(PRETOKENIZERS.items())}
LENGTH = 10_000
WORDS = "hello World it's DON'T 123 4567 camelCase _x (a) !? ... += $ été ß 日本語 한국어 émoji😀"


def make_texts(length: int) -> dict[str, str]:
    """Make texts of many kinds: prose, code, and runs of one kind of character."""
    chance = random.Random(11)

    def draw(characters: str) -> str:
        return "".join(chance.choices(characters, k=length))

    words = [*WORDS.split(), *"abcde"]
    breaks = [". ", ", ", " ", "\n", "  ", "\r\n"]
    letters = [*map(chr, range(32, 127)), *map(chr, range(160, 0x2FFF))]
    lines = (f"{'    ' * (i % 4)}f_{i}(a{i}, {i * 37}) += 0x{i:x}" for i in range(length // 20))
    return {
        "prose": " ".join(chance.choices(words, k=length // 5)),
        "sentences": "".join(chance.choices(words + breaks, k=length // 3)),
        "code": "\n".join(lines),
        "one letter": "a" * length,
        "letters": draw("ACGT"),
        "digits": draw("0123456789"),
        "base64": draw("ABCDEFabcdef0123456789+/"),
        "spaces": " " * length,
        "white space": draw(" \t\n\r"),
        "lines": "\n" * length,
        "punctuation": draw("!?,.;:-_()'\""),
        "apostrophes": "don't it's we'LL " * (length // 17),
        "Chinese": draw("日本語我有个苹果。，"),
        "emoji": draw("😀🎉👍🏽❤️"),
        "anything": draw("".join(letters)),
    }


TEXTS = make_texts(LENGTH)


def refuse_nothing(_: str) -> BadRequest:
    raise AssertionError("the limit is high enough")


HIGH_LIMIT = make_limit(10**9, 1000, refuse_nothing)


@pytest.fixture(autouse=True)
def _use_small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut often, so that short texts show what long ones would."""
    monkeypatch.setattr(slices, "SLICE", 400)
    monkeypatch.setattr(slices, "MAX_BYTES", 4_000)
    monkeypatch.setattr(slices, "CHECKED_BYTES", 400)


def check_slices(tokenizer: Tokenizer, texts: dict[str, str]) -> None:
    for kind, text in texts.items():
        sliced = list(asyncio.run(encode_text(text, tokenizer, HIGH_LIMIT)))
        assert sliced == tokenizer.encode_now(text), kind


def build(path: Path, vocabulary: dict[str, Any]) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(gguf.read_header(write_tiny_model(path, vocabulary)).metadata)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_slices_of_every_pretokenizer_have_the_ids_of_the_whole(name: str, tmp_path: Path) -> None:
    check_slices(build(tmp_path / "m.gguf", train_byte_level_vocabulary(PROBES, name)), TEXTS)


def test_slices_of_the_default_model_have_the_ids_of_the_whole(default_model: Path) -> None:
    tokenizer = tokenizer_from_gguf(gguf.read_header(default_model).metadata)
    assert isinstance(tokenizer, Tokenizer)
    check_slices(tokenizer, make_texts(3 * LENGTH))


@pytest.mark.parametrize("prefix", [True, False])
def test_slices_of_a_vocabulary_with_scores(prefix: bool, tmp_path: Path) -> None:
    vocabulary, _ = train_scored_vocabulary(PROBES)
    tokenizer = build(tmp_path / "m.gguf", vocabulary | {"add_space_prefix": prefix})
    spaced = {kind: TEXTS[kind] for kind in ("prose", "sentences", "code", "apostrophes")}
    check_slices(tokenizer, spaced if prefix else TEXTS)


def test_slices_of_word_pieces() -> None:
    words = {"[UNK]": 0, "hello": 1, "##s": 2, "a": 3, "##a": 4, "it": 5, "'": 6, "123": 7}
    backend = Backend(models.WordPiece(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = adapt_tokenizer(backend)
    assert isinstance(tokenizer, Tokenizer)
    check_slices(tokenizer, {kind: TEXTS[kind] for kind in ("prose", "sentences", "code")})


def test_the_tokenizer_of_an_engine_is_called_with_slices() -> None:
    own = ByteTokenizer()
    sizes = []

    class Engine:
        async def tokenize(self, text: str, special: bool) -> list[int]:
            assert not special
            sizes.append(len(text))
            return own.encode_now(text)

    tokenizer = EngineTokenizer(own.vocabulary, Engine())
    ids = list(asyncio.run(encode_text(TEXTS["prose"], tokenizer, HIGH_LIMIT)))
    assert ids == own.encode_now(TEXTS["prose"])
    assert max(sizes) <= 800


@pytest.mark.parametrize("kind", TEXTS)
def test_tokenizing_stops_at_the_limit(kind: str) -> None:
    encoded = 0

    class CountingTokenizer(ByteTokenizer):
        def encode_now(self, text: str) -> list[int]:
            nonlocal encoded
            encoded += len(text)
            return super().encode_now(text)

    limit = make_limit(600, 1000, lambda length: BadRequest(length))
    with pytest.raises(BadRequest, match=r"at least \d+ tokens"):
        asyncio.run(encode_text(TEXTS[kind], CountingTokenizer(), limit))
    assert encoded < 0.9 * LENGTH


@pytest.mark.parametrize(
    ("tokens", "characters", "error"),
    [
        (100, 8_000, None),
        (100, 8_101, "at least 100 tokens"),
        (100, 81_000, "at least 1000 tokens"),
        (1_000_000, 8_000_000, None),
        (1_000_000, 8_000_001, "8000001 characters, of which at most 8000000 are read"),
        (100_000, (4 << 20) + 1, "4194305 characters, of which at most 4194304 are read"),
    ],
)
def test_a_text_that_cannot_fit_is_refused_by_its_length(
    tokens: int, characters: int, error: str | None
) -> None:
    limit = make_limit(tokens, 81, lambda length: BadRequest(length))
    if error is None:
        limit.check_characters(characters)
    else:
        with pytest.raises(BadRequest, match=f"^{error}$"):
            limit.check_characters(characters)


@pytest.mark.parametrize(
    ("pieces", "longest"),
    [
        ([b"a", b"abc", b""], 3),
        (["日本語".encode()], 3),
        ([b"\xa5\xe6\x9c\xac", "é".encode()], 2),  # the end of a character, and another
        ([b"\x80"], 1),
    ],
)
def test_how_many_characters_a_token_can_end(pieces: list[bytes], longest: int) -> None:
    assert measure_longest_token(pieces) == longest


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEXTS)
def test_no_text_has_fewer_tokens_than_its_length_allows(kind: str, default_model: Path) -> None:
    tokenizer = tokenizer_from_gguf(gguf.read_header(default_model).metadata)
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.keeps_text
    limit: PromptLimit = make_limit(
        len(tokenizer.encode_now(TEXTS[kind])), measure_longest_token(tokenizer.pieces), BadRequest
    )
    limit.check_characters(LENGTH)
