"""Short texts are put together from words that were encoded before, with the same tokens."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dragoman.tokenizers.pretokenizers import PRETOKENIZERS
from dragoman.tokenizers.tokenizer import PROBES, Tokenizer
from dragoman.tokenizers.words import MAX_WORD, MAX_WORDS, WordEncoder, make_word_encoder
from tests.support.tokenizer_oracle import train_byte_level_vocabulary
from tests.tokenizers.test_tokenizer import ONE_OF_EACH, TEXT_PARTS, build

LETTERS = ("the", "quick", "Fox", "DON", "a", "I", "s", "re", "x", "camelCase", "straße", "é")
PARTS = (*LETTERS, *TEXT_PARTS, " the", " a", " it's", "'s", " b c", " CD ef")
JOINS_WORDS = {"exaone-moe"}  # its words may have spaces in them


def reject(texts: list[str]) -> list[list[int]]:
    raise AssertionError(f"{texts} are encoded")


def make_backend() -> Backend:
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return backend


def make_texts(count: int) -> list[str]:
    chance = random.Random(3)
    spaced = [" ".join(chance.choices(LETTERS, k=chance.randint(1, 12))) for _ in range(count)]
    mixed = ["".join(chance.choices(PARTS, k=chance.randint(1, 25))) for _ in range(count)]
    return [*PROBES, *spaced, *mixed]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_words_have_the_tokens_that_the_text_has(name: str, tmp_path: Path) -> None:
    tokenizer = build(tmp_path / "m.gguf", train_byte_level_vocabulary(PROBES, name))
    encoder = make_encoder(tokenizer)
    assert (encoder is None) == (PRETOKENIZERS[name] in map(PRETOKENIZERS.get, JOINS_WORDS))
    for _ in range(2):  # words are new, then known
        for text in make_texts(60):
            assert asyncio.run(tokenizer.encode(text)) == tokenizer.encode_now(text), text


def make_encoder(tokenizer: Tokenizer) -> WordEncoder | None:
    backend = Backend.from_str(tokenizer.serialize_backend())
    return make_word_encoder(backend, lambda texts: [tokenizer.encode_now(text) for text in texts])


ALPHABET = st.sampled_from("abZ  \n\t'.,1-_\u00e9\u0301\u00a0\u200d\u4e16\U0001f600")
TEXTS = st.lists(st.text(ALPHABET, max_size=40) | st.sampled_from(PARTS)).map("".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("words") / "m.gguf"
    return build(path, train_byte_level_vocabulary(PROBES, "smollm"))


@given(TEXTS)
@settings(max_examples=200)
def test_any_text_has_the_same_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert asyncio.run(tokenizer.encode(text)) == tokenizer.encode_now(text)


def test_known_words_are_not_encoded_again() -> None:
    encoded: list[str] = []

    def encode_all(texts: list[str]) -> list[list[int]]:
        encoded.extend(texts)
        return [[len(text)] for text in texts]

    encoder = WordEncoder(encode_all)
    assert encoder.encode("one two two three, four") == [3, 4, 4, 12]
    assert encoder.encode("one two five") == [3, 4, 5]
    assert encoded == ["one", " two", " two", " three, four", " five"]


def test_few_words_are_kept_and_no_long_ones() -> None:
    encoder = WordEncoder(lambda texts: [[len(text)] for text in texts])
    assert encoder.encode("x" * (MAX_WORD + 1)) == [MAX_WORD + 1]
    assert len(encoder) == 0
    letters = "abcdefghijklmnopqrstuvwxyz"
    for first in letters:
        for second in letters:
            encoder.encode(" ".join(first + second + a + b for a in letters for b in letters[:9]))
            assert len(encoder) <= MAX_WORDS


def test_a_tokenizer_that_splits_at_spaces_has_an_encoder() -> None:
    assert make_word_encoder(make_backend(), reject) is not None


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (AddedToken("<tag>"), True),
        (AddedToken("word"), True),
        (AddedToken("    "), True),
        (AddedToken("two words"), False),
        (AddedToken(" "), False),
        (AddedToken("word", rstrip=True), False),
    ],
)
def test_tokens_that_may_lie_across_words(added: AddedToken, expected: bool) -> None:
    backend = make_backend()
    backend.add_tokens([added])
    assert (make_word_encoder(backend, reject) is not None) is expected


@pytest.mark.parametrize("part", ["model", "dropout", "normalizer", "lines", "none", "letters"])
def test_tokenizers_without_an_encoder(part: str) -> None:
    backend = make_backend()
    match part:
        case "model":
            backend.model = models.Unigram([("a", 0.0)], 0, False)
        case "dropout":
            backend.model = models.BPE(vocab={"a": 0}, merges=[], dropout=0.5)
        case "normalizer":
            backend.normalizer = normalizers.Replace(" ", "_")
        case "lines":
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
        case "letters":  # splits at all places but between an `x` and a `y`
            pattern = Regex(r"x y|\S+| ")
            backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
        case _:
            backend.pre_tokenizer = None
    assert make_word_encoder(backend, reject) is None
