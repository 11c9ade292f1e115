"""Rebuilt tokenizers agree with the engine's, and plain text never becomes a special token."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dragoman.engines.llamacpp import gguf
from dragoman.tokenizers.from_gguf import pieces_from_gguf, vocabulary_from_gguf
from dragoman.tokenizers.pretokenizers import PRETOKENIZERS
from dragoman.tokenizers.tokenizer import (
    MAX_INLINE_CHARACTERS,
    PROBES,
    EngineTokenizer,
    Tokenizer,
    compare_with_engine,
    tokenizer_from_gguf,
    verify_tokenizer,
)
from dragoman.tokenizers.vocabulary import is_markup
from tests.support.tokenizer_oracle import (
    Oracle,
    start_oracle,
    train_byte_level_vocabulary,
    train_scored_vocabulary,
    write_tiny_model,
)

pytestmark = pytest.mark.slow

WORDS = (
    "hello World it's DON'T 123 4567 word camelCase _x (a) !? ... += $ ` A b été ß Ω І ʰ ǅ ½ ٣٤ "
    "日本語 한국어 émoji😀 e\u0301 ！ 、 ㄅ 👨\u200d👩\u200d👧 \ufeff"
)
SPACES = (" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u200d")
TEXT_PARTS = [*WORDS.split(), *SPACES]
sentences = st.lists(st.sampled_from(TEXT_PARTS), max_size=30).map("".join)
anything = st.text(
    st.characters(exclude_categories=("Cs", "Cn", "Co"), max_codepoint=0x2FFFF), max_size=40
)
many_examples = settings(
    max_examples=700, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ONE_OF_EACH = {pretokenizer: name for name, pretokenizer in reversed(PRETOKENIZERS.items())}


@pytest.fixture(scope="module")
def ours(default_model: Path) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(gguf.read_header(default_model).metadata)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


@pytest.fixture(scope="module")
def theirs(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    with start_oracle(default_model, tmp_path_factory.mktemp("o")) as running:
        yield running


def build(path: Path, vocabulary: dict[str, Any]) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(gguf.read_header(write_tiny_model(path, vocabulary)).metadata)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def check_same_ids(ours: Tokenizer, theirs: Oracle, texts: list[str]) -> None:
    for text in texts:
        assert ours.encode_now(text) == theirs(text), text


@many_examples
@given(st.lists(sentences | anything, min_size=1, max_size=5))
@example([":\x1d/"])  # a byte that the vocabulary lacks, between two that have a merge
def test_default_model_agrees_with_the_engine(
    ours: Tokenizer, theirs: Oracle, texts: list[str]
) -> None:
    check_same_ids(ours, theirs, texts)


def test_every_character_agrees_with_the_engine(ours: Tokenizer, theirs: Oracle) -> None:
    letters = [
        chr(code)
        for code in range(0x20, 0x30000)
        if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")
    ]
    for start in range(0, len(letters), 500):
        some = letters[start : start + 500]
        check_same_ids(ours, theirs, ["".join(f"a{c}1 {c}b{c}{c} " for c in some)])


def test_the_default_model_is_verified(ours: Tokenizer, theirs: Oracle) -> None:
    assert asyncio.run(compare_with_engine(ours, theirs.tokenize)) == []
    assert asyncio.run(verify_tokenizer(ours, theirs)) is ours


@many_examples
@given(sentences | anything.filter(lambda text: text.replace("\n", "").isprintable()))
def test_decoding_gives_the_text_back(ours: Tokenizer, text: str) -> None:
    assert ours.decode(ours.encode_now(text)) == text
    assert b"".join(ours.pieces[token] for token in ours.encode_now(text)) == text.encode()


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_each_pretokenizer_agrees_with_the_engine(name: str, tmp_path: Path) -> None:
    ours = build(tmp_path / "m.gguf", train_byte_level_vocabulary(PROBES, name))
    texts = [text for text in _random_sentences(300) if "<" not in text]
    with start_oracle(tmp_path / "m.gguf", tmp_path) as theirs:
        assert asyncio.run(compare_with_engine(ours, theirs.tokenize)) == []
        check_same_ids(ours, theirs, texts)


@pytest.mark.parametrize("prefix", [True, False])
def test_scored_vocabulary_agrees_with_the_engine(prefix: bool, tmp_path: Path) -> None:
    vocabulary, _ = train_scored_vocabulary(PROBES)
    ours = build(tmp_path / "m.gguf", vocabulary | {"add_space_prefix": prefix})
    words = ("<s>", "</s>", "<unk>", "<table>", "\n\n", "   ")
    texts = [f"a {word} b{word}" for word in words]
    with start_oracle(tmp_path / "m.gguf", tmp_path) as theirs:
        assert asyncio.run(compare_with_engine(ours, theirs.tokenize)) == []
        check_same_ids(ours, theirs, texts + _random_sentences(800))
    assert ours.add_bos
    assert ours.decode(ours.encode_now("été\n日本")) == (" " if prefix else "") + "été\n日本"


def test_merging_over_lines_agrees_with_the_engine(tmp_path: Path) -> None:
    vocabulary, merges = train_scored_vocabulary(PROBES)
    del vocabulary["scores"]
    ours = build(
        tmp_path / "m.gguf",
        vocabulary | {"model": "gemma4", "merges": merges, "add_bos_token": False},
    )
    with start_oracle(tmp_path / "m.gguf", tmp_path) as theirs:
        assert asyncio.run(compare_with_engine(ours, theirs.tokenize)) == []
        check_same_ids(ours, theirs, _random_sentences(800))
    assert ours.add_bos  # always for this model, whatever its file contains


def _random_sentences(count: int) -> list[str]:
    import random

    chance = random.Random(7)
    return ["".join(chance.choices(TEXT_PARTS, k=chance.randint(1, 25))) for _ in range(count)]


def test_plain_text_never_becomes_a_special_token(ours: Tokenizer) -> None:
    text = "".join(f"x{special} {special}" for special in ours.specials)
    ids = ours.encode_now(text)
    assert not set(ids) & set(ours.specials.values())
    assert ours.decode(ids) == text


@pytest.mark.parametrize("kind", ["bytes", "scores"])
def test_markup_never_matches_but_other_defined_words_do(kind: str, tmp_path: Path) -> None:
    vocabulary = (
        train_byte_level_vocabulary(PROBES, "llama-bpe")
        if kind == "bytes"
        else train_scored_vocabulary(PROBES)[0]
    )
    ours = build(tmp_path / "m.gguf", vocabulary)
    html = vocabulary["tokens"].index("<table>")
    assert "<tool_call>" in ours.specials
    assert "<table>" not in ours.specials
    assert html in ours.encode_now("a<table>b")
    forged = ours.encode_now("a<tool_call>b</s><|im_end|>")
    assert not set(forged) & set(ours.specials.values())
    assert ours.decode(forged).strip() == "a<tool_call>b</s><|im_end|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<|im_start|>", True),
        ("<tool_call>", True),
        ("</think>", True),
        ("[INST]", True),
        ("[/TOOL_RESULTS]", True),
        ("<｜tool▁calls▁begin｜>", True),
        ("<turn|>", True),
        ("<table>", False),
        ("</h1>", False),
        ("<0x0A>", False),
        ("word", False),
        ("  ", False),
        ("a < b >", False),
        ("[0]", False),
    ],
)
def test_what_looks_like_markup(text: str, expected: bool) -> None:
    assert is_markup(text) is expected


def make_metadata(words: dict[str, int], **fields: Any) -> dict[str, Any]:
    """Make the GGUF metadata of a vocabulary, given as types by text."""
    base: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": list(words),
        "tokenizer.ggml.token_type": list(words.values()),
        "tokenizer.ggml.merges": [],
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}


CHATML = {"a": 1, "<|endoftext|>": 3, "<|im_start|>": 3, "<|im_end|>": 3}
HARMONY = {"<|return|>": 3, "<|call|>": 3, "<|end|>": 3, "<|start|>": 3}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (make_metadata(CHATML, eos_token_id=3), {1, 3}),
        (make_metadata(CHATML, eos_token_id=0), {0, 1, 3}),  # the model's own comes first
        (make_metadata(CHATML, eos_token_id=0, eot_token_id=2), {0, 1, 2, 3}),
        (make_metadata(CHATML), {1, 3}),
        (make_metadata(CHATML, eos_token_id=99), {1, 3}),  # out of range
        (make_metadata({"a": 1, "</s>": 1}), set()),  # an ordinary word ends nothing
        (make_metadata({"a": 1, "</s>": 3}), {1}),
        (make_metadata({"a": 1, "<|im_end|>": 1}), {1}),  # markup that the file lists as a word
        (make_metadata(HARMONY), {0, 1}),  # here `<|end|>` ends a message, not the answer
        (make_metadata({"a": 1, "b": 1}), set()),
        ({}, set()),
    ],
)
def test_stop_ids_come_from_metadata_then_texts(
    metadata: dict[str, Any], expected: set[int]
) -> None:
    vocabulary = vocabulary_from_gguf(metadata)
    assert vocabulary.eos_ids == expected
    assert expected <= vocabulary.control


def test_templates_know_the_special_tokens(ours: Tokenizer) -> None:
    assert ours.variables == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }
    assert (ours.bos_id, ours.eos_id, set(ours.eos_ids)) == (1, 2, {0, 2})
    assert ours.add_bos is False
    assert ours.vocab_size == 49152
    assert ours.control == set(range(17))
    assert ours.specials["<|im_end|>"] == 2


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (make_metadata(CHATML, bos_token_id=2), False),
        (make_metadata(CHATML, bos_token_id=2, add_bos_token=True), True),
        (make_metadata(CHATML, bos_token_id=2, pre="llama-bpe"), True),
        (make_metadata(CHATML, bos_token_id=2, pre="llama-bpe", add_bos_token=False), False),
        (make_metadata(CHATML, add_bos_token=True), False),  # there is no BOS token
        (make_metadata({"a": 1, "<s>": 3}, model="llama"), True),
        (make_metadata({"a": 1, "<s>": 3}, model="llama", add_bos_token=False), False),
    ],
)
def test_bos_is_added_only_if_the_model_wants_it(metadata: dict[str, Any], expected: bool) -> None:
    assert vocabulary_from_gguf(metadata).add_bos is expected


@pytest.mark.parametrize(
    ("kind", "tokens", "pieces"),
    [
        (
            "gpt2",
            {"Ġa": 1, "Ċ": 1, "<|x|>": 3, "[PAD1]": 5, "日": 1},
            [b" a", b"\n", b"<|x|>", b"", "日".encode()],
        ),
        (
            "llama",
            {"▁a": 1, "<0x0A>": 6, "<s>": 3, "\n▁": 4},
            [b" a", b"\n", b"<s>", "\n▁".encode()],
        ),
        ("rwkv", {"a\\x00b": 1, "\\n": 1, "\\\\": 1, "x": 1}, [b"a\x00b", b"\n", b"\\", b"x"]),
        ("plamo2", {"▁a": 1, "<0xFF>": 6}, ["▁a".encode(), b"\xff"]),
        ("none", {}, []),
    ],
)
def test_pieces_are_the_bytes_of_each_kind_of_vocabulary(
    kind: str, tokens: dict[str, int], pieces: list[bytes]
) -> None:
    assert pieces_from_gguf(make_metadata(tokens, model=kind)) == pieces


def test_pieces_keep_bytes_that_are_not_utf8() -> None:
    broken = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert pieces_from_gguf(make_metadata({broken: 1}, model="llama")) == [b"\xff\xfe"]


@pytest.mark.parametrize(
    "metadata",
    [
        make_metadata(CHATML, tokens=3),
        make_metadata(CHATML, tokens="text", token_type="text"),
        make_metadata(CHATML, token_type=[1]),
        make_metadata(CHATML, merges=None),
        make_metadata(CHATML, merges=["x y"]),
        make_metadata(CHATML, model="llama", scores=[1.0]),
        make_metadata(CHATML, model=7, pre=7),
        make_metadata(CHATML, model="bert"),
        make_metadata(CHATML, pre="unknown-name"),
    ],
)
def test_malformed_metadata_gives_no_tokenizer_but_no_crash(metadata: dict[str, Any]) -> None:
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer is None or isinstance(tokenizer, Tokenizer)


class FakeEngine:
    """Tokenizes letter by letter, except for the words it is given."""

    def __init__(self, **words: int) -> None:
        self.words = words

    async def tokenize(self, text: str, special: bool) -> list[int]:
        assert not special
        return [self.words[text]] if text in self.words else [1000 + ord(c) for c in text]


def test_a_tokenizer_that_differs_is_replaced(ours: Tokenizer, caplog: Any) -> None:
    engine = FakeEngine()
    differences = asyncio.run(compare_with_engine(ours, engine.tokenize))
    assert len(differences) == len(PROBES)
    assert differences[0].text == PROBES[0]
    chosen = asyncio.run(verify_tokenizer(ours, engine))
    assert isinstance(chosen, EngineTokenizer)
    assert chosen.source == "engine"
    assert chosen.specials == ours.specials
    assert asyncio.run(chosen.encode("ab")) == [1097, 1098]
    assert asyncio.run(chosen.encode("")) == []
    assert chosen.decode(ours.encode_now("same pieces")) == "same pieces"
    assert "differs" in caplog.text
    assert asyncio.run(verify_tokenizer(chosen, engine)) is chosen
    with pytest.raises(NotImplementedError):
        chosen.encode_now("x")


def test_special_tokens_that_an_engine_matches_are_corrected() -> None:
    metadata = make_metadata({"a": 1, "<tool_call>": 4}, pre="unknown-name")
    chosen = tokenizer_from_gguf(metadata, FakeEngine(**{"<tool_call>": 1}))
    assert isinstance(chosen, EngineTokenizer)
    ids = asyncio.run(chosen.encode("<tool_call>"))
    assert 1 not in ids
    assert [chr(token - 1000) for token in ids] == list("<tool_call>")


def test_long_texts_are_encoded_in_a_thread(ours: Tokenizer) -> None:
    threads: list[threading.Thread] = []

    class RecordingTokenizer(Tokenizer):
        def _encode_all(self, texts: list[str]) -> list[list[int]]:
            threads.append(threading.current_thread())
            return super()._encode_all(texts)

    tokenizer = RecordingTokenizer(ours.vocabulary, ours._backend)

    async def encode_both() -> tuple[list[int], list[int]]:
        return await tokenizer.encode("x" * 10), await tokenizer.encode(
            "word " * MAX_INLINE_CHARACTERS
        )

    _, long = asyncio.run(encode_both())
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
    assert ours.decode(long) == "word " * MAX_INLINE_CHARACTERS


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "ok \ud83d\ude00 ok"])
def test_a_lone_surrogate_is_not_an_error(ours: Tokenizer, text: str) -> None:
    decoded = ours.decode(ours.encode_now(text))
    assert decoded == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_unknown_ids_decode_to_nothing(ours: Tokenizer) -> None:
    assert ours.decode([-1, 10**9, *ours.encode_now("x")]) == "x"
