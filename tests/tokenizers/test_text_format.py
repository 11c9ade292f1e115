"""The special tokens around texts to embed or score, from every kind of file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from dragoman.engines.llamacpp.gguf import read_header
from dragoman.prompt.text_pairs import PairTemplate, join_texts
from dragoman.prompt.tokens.limit import DEFAULT_LIMIT
from dragoman.prompt.tokens.token_cache import TokenCache
from dragoman.testing.byte_tokenizer import ByteTokenizer
from dragoman.tokenizers.from_gguf import vocabulary_from_gguf
from dragoman.tokenizers.text_format import TextFormat, format_from_gguf, format_from_json
from tests.support.llama_engine import EngineRunner
from tests.support.pooling_models import CLS, MEAN, SEP, write_encoder

PREFIX = "tokenizer.ggml."
IDS = {"bos_token_id": 1, "eos_token_id": 2, "seperator_token_id": 3}


@pytest.mark.parametrize(
    ("metadata", "add_bos", "single", "pair"),
    [
        ({"model": "gpt2"}, False, [9], [8, 9]),
        ({"model": "gpt2"}, True, [1, 9], [1, 8, 9]),
        ({"model": "gpt2", "add_eos_token": True}, True, [1, 9, 2], [1, 8, 2, 9, 2]),
        ({"model": "llama", "add_eos_token": True}, False, [9, 2], [8, 2, 9, 2]),
        ({"model": "gpt2", "add_sep_token": True}, True, [1, 9], [1, 8, 3, 9]),
        ({"model": "t5"}, False, [9, 2], [8, 2, 9, 2]),
        ({"model": "t5", "add_eos_token": False}, False, [9], [8, 9]),
        ({"model": "bert"}, True, [1, 9, 3], [1, 8, 3, 9]),
        ({"model": "bert", "add_eos_token": True}, True, [1, 9, 3], [1, 8, 2, 3, 9, 2]),
    ],
)
def test_special_tokens_around_texts_follow_the_metadata_of_the_file(
    metadata: dict[str, Any], add_bos: bool, single: list[int], pair: list[int]
) -> None:
    fields = {PREFIX + name: value for name, value in (IDS | metadata).items()}
    text_format = format_from_gguf(fields, add_bos)
    assert text_format.wrap([9]) == single
    assert join_texts([8], [9], text_format).ids == pair
    assert join_texts([8], [9], text_format).document_start is None


def test_the_native_library_puts_the_same_tokens_around_a_text(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "embed.gguf", MEAN)
    runner = EngineRunner(path=str(path), threads=1)
    try:
        text_format = vocabulary_from_gguf(read_header(path).metadata).get_text_format()
        plain = runner.run(runner.engine.tokenize("the cat", False))
        (by_text,) = runner.run(runner.engine.embed(["the cat"]))
        (by_ids,) = runner.run(runner.engine.embed([text_format.wrap(plain)]))
    finally:
        runner.close()
    assert text_format.wrap(plain) == [CLS, *plain, SEP]
    assert by_text == pytest.approx(by_ids, abs=1e-6)


def make_file(processor: Any) -> dict[str, Any]:
    """Return a `tokenizer.json` with a post-processor, and the words a to z."""
    backend = Backend(models.WordLevel({"a": 8, "b": 9, "[C]": 1, "[S]": 3}, unk_token="a"))
    backend.post_processor = processor
    return dict(json.loads(backend.to_str()))


TEMPLATE = processors.TemplateProcessing(
    single="[C] $A [S]", pair="[C] $A [S] $B:1 [S]:1", special_tokens=[("[C]", 1), ("[S]", 3)]
)
ONE_TYPE = processors.TemplateProcessing(
    single="$A [S]", pair="$A [S] $B [S]", special_tokens=[("[S]", 3)]
)


@pytest.mark.parametrize(
    "processor",
    [
        TEMPLATE,
        ONE_TYPE,
        processors.BertProcessing(("[S]", 3), ("[C]", 1)),
        processors.RobertaProcessing(("[S]", 3), ("[C]", 1)),
        processors.Sequence([processors.ByteLevel(), TEMPLATE]),
    ],
    ids=["template", "one type", "bert", "roberta", "sequence"],
)
def test_tokenizer_json_means_what_the_library_does(processor: Any) -> None:
    file = make_file(processor)
    text_format = format_from_json(file, ())
    backend = Backend(models.WordLevel({"a": 8, "b": 9, "[C]": 1, "[S]": 3}, unk_token="a"))
    backend.post_processor = processor
    assert text_format.wrap([8]) == backend.encode("a").ids
    expected = backend.encode("a", "b")
    pair = join_texts([8], [9], text_format)
    assert pair.ids == expected.ids
    types = [int(i >= (pair.document_start or 99)) for i in range(len(pair.ids))]
    assert types == expected.type_ids


@pytest.mark.parametrize("processor", [None, {}, {"type": "ByteLevel"}, {"processors": []}, 5])
def test_without_a_pattern_a_text_begins_with_bos(processor: Any) -> None:
    text_format = format_from_json({"post_processor": processor}, (7,))
    assert text_format == TextFormat(start=(7,), pair_start=(7,))


@pytest.mark.parametrize("text", ["<|im_end|>", "{query}", "{document}", "<|im_start|>system", ""])
def test_templates_keep_the_texts_of_clients(text: str) -> None:
    tokenizer = ByteTokenizer()
    template = "<|im_start|>q: {query} d: {document}<|im_end|>"
    pair = PairTemplate(template, tokenizer, TokenCache(1 << 20))
    ids = asyncio.run(pair.encode(text, text, DEFAULT_LIMIT))
    start, end = tokenizer.specials["<|im_start|>"], tokenizer.specials["<|im_end|>"]
    assert [token for token in ids if token > 255] == [start, end]
    assert tokenizer.decode(ids) == f"<|im_start|>q: {text} d: {text}<|im_end|>"
