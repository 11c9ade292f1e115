"""Short texts are put together from words that were encoded before, with the same tokens."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from dragoman.tokenizers.pretokenizers import PRETOKENIZERS
from dragoman.tokenizers.tokenizer import PROBES, Tokenizer
from dragoman.tokenizers.words import PAUSE, WordEncoder, make_word_encoder
from tests.support.tokenizer_oracle import train_byte_level_vocabulary
from tests.tokenizers.test_tokenizer import ONE_OF_EACH, TEXT_PARTS, build

LETTERS = ("the", "quick", "Fox", "DON", "a", "I", "s", "re", "x", "camelCase", "straße", "é")
PARTS = (*LETTERS, *TEXT_PARTS, " the", " a", " it's", "'s", " b c", " CD ef")
JOINS_WORDS = {"exaone-moe"}  # its words may have spaces in them


def reject(text: str) -> list[int]:
    raise AssertionError(f"{text!r} is encoded")


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
    return make_word_encoder(backend, tokenizer.encode_now, tokenizer.pieces)


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


class LetterEncoder:
    """Knows some words as tokens; every other character is a token of its own."""

    def __init__(self, *words: str) -> None:
        self.pieces = [bytes([code]) for code in range(128)] + [word.encode() for word in words]
        self.texts: list[str] = []
        self._pattern = re.compile("|".join([*map(re.escape, words), "."]), re.DOTALL)

    def __call__(self, text: str) -> list[int]:
        self.texts.append(text)
        return [self.pieces.index(word.encode()) for word in self._pattern.findall(text)]


def test_known_words_are_not_encoded_again() -> None:
    encode = LetterEncoder(" two", " six", " three")
    encoder = WordEncoder(encode, encode.pieces)
    assert encoder.encode("one two three six") == encode("one two three six")
    texts = {
        "one two six three": "one",
        "a six ab two": "a ab",
        "a two six -two six": "a six -two",  # the text is not cut before a dash
        "a six 1 six two": "a six 1 six",
        "six two": "six",
        "six  two": "six  two",
        " two six": " two",
    }
    for text, encoded in texts.items():
        text += " two six" * 8
        assert encoder.encode(text) == encode(text), text
        assert encode.texts[-2] == encoded


def test_texts_of_unknown_words_are_encoded_as_a_whole() -> None:
    encode = LetterEncoder(" two", " six")
    encoder = WordEncoder(encode, encode.pieces)
    encoder.encode("a, b, c, d, e")  # teaches too little to learn from the next ones
    for _ in range(PAUSE):
        assert encoder.encode("a six x y z") == encode("a six x y z")
        assert encode.texts[-2] == "a six x y z"
    assert len(encoder) == 0
    encoder.encode("a six x y z")
    assert len(encoder) == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a two three", 1),
        ("two three", 0),
        ("a two1", 0),
        ("a gibberish", 0),  # several tokens
        (f"a {'x' * 24}", 1),
        (f"a {'y' * 25}", 0),
    ],
)
def test_only_words_of_one_token_are_kept(text: str, count: int) -> None:
    encode = LetterEncoder(" two", f" {'x' * 24}", f" {'y' * 25}")
    encoder = WordEncoder(encode, encode.pieces)
    encoder.encode(text)
    assert len(encoder) == count


def test_tokens_that_stand_for_other_bytes_are_not_cut() -> None:
    encode = LetterEncoder(" two", " six")
    encoder = WordEncoder(encode, [piece + b"?" for piece in encode.pieces])
    for _ in range(2):
        assert encoder.encode("a two six") == encode("a two six")


def test_a_tokenizer_that_splits_at_spaces_has_an_encoder() -> None:
    assert make_word_encoder(make_backend(), reject, [b"a"]) is not None


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        (AddedToken("<tag>"), True),
        (AddedToken("word"), True),
        (AddedToken("    "), True),
        (AddedToken("two words"), False),
        (AddedToken(" "), False),
        (AddedToken("word", rstrip=True), False),
        (AddedToken("word", lstrip=True), False),
    ],
)
def test_tokens_that_may_lie_across_words(added: AddedToken, expected: bool) -> None:
    backend = make_backend()
    backend.add_tokens([added])
    assert (make_word_encoder(backend, reject, [b"a"]) is not None) is expected


@pytest.mark.parametrize(
    "part", ["model", "dropout", "unknown", "normalizer", "lines", "none", "letters"]
)
def test_tokenizers_without_an_encoder(part: str) -> None:
    backend = make_backend()
    match part:
        case "model":
            backend.model = models.Unigram([("a", 0.0)], 0, False)
        case "dropout":
            backend.model = models.BPE(vocab={"a": 0}, merges=[], dropout=0.5)
        case "unknown":
            backend.model = models.BPE(vocab={"a": 0}, merges=[], unk_token="a")
        case "normalizer":
            backend.normalizer = normalizers.Replace(" ", "_")
        case "lines":
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
        case "letters":  # splits at all places but between an `x` and a `y`
            pattern = Regex(r"x y|\S+| ")
            backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
        case _:
            backend.pre_tokenizer = None
    assert make_word_encoder(backend, reject, [b"a"]) is None
