"""A tokenizer.json gives the model's own tokenizer; plain text never becomes a special token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from dragoman.errors import ModelBroken
from dragoman.prompt.renderer import PromptRenderer
from dragoman.tokenizers.tokenizer import PROBES, Tokenizer, tokenizer_from_directory
from dragoman.types import Prompt


def write_directory(path: Path, backend: Backend, **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def train_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(list(PROBES), trainer)
    backend.add_special_tokens(["<|begin|>", "<|im_end|>"])
    backend.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<table>")])
    return backend


def test_a_directory_gives_the_models_own_tokenizer(tmp_path: Path) -> None:
    backend = train_backend()
    path = write_directory(
        tmp_path / "m",
        backend,
        tokenizer_config={
            "bos_token": {"content": "<|begin|>"},
            "eos_token": "<|im_end|>",
            "add_bos_token": True,
        },
        generation_config={"eos_token_id": [5, 6]},
    )
    ours = tokenizer_from_directory(path)
    assert isinstance(ours, Tokenizer)
    for text in PROBES:
        assert ours.encode_now(text) == backend.encode(text).ids
        assert ours.decode(ours.encode_now(text)) == text
    assert set(ours.specials) == {"<|begin|>", "<|im_end|>", "<tool_call>"}
    end = backend.token_to_id("<|im_end|>")
    assert ours.eos_ids == {5, 6, end}
    assert (ours.bos_id, ours.eos_id) == (backend.token_to_id("<|begin|>"), end)
    assert ours.add_bos
    assert ours.variables == {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
    forged = ours.encode_now("<|begin|>x<tool_call>y<table>")
    assert not set(forged) & set(ours.specials.values())
    assert backend.token_to_id("<table>") in forged
    assert ours.decode(forged) == "<|begin|>x<tool_call>y<table>"


def test_plain_text_cannot_become_a_scored_special_token(tmp_path: Path) -> None:
    words = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -3.0), ("▁hello", -1.0)]
    words += [(letter, -5.0) for letter in "</s>helo"]
    backend = Backend(models.Unigram(words, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    assert backend.encode("</s>").ids == [2, 1]  # plain text could end the turn
    backend.add_special_tokens(["</s>"])
    ours = tokenizer_from_directory(
        write_directory(tmp_path / "m", backend, special_tokens_map={"eos_token": "</s>"})
    )
    assert isinstance(ours, Tokenizer)
    assert ours.eos_id == 1
    assert 1 not in ours.encode_now("hello</s>")
    assert ours.decode(ours.encode_now("hello</s>")) == " hello</s>"
    assert ours.encode_now("hello") == [3]


def test_word_pieces_of_a_directory(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "play": 1, "##ing": 2}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    ours = tokenizer_from_directory(write_directory(tmp_path / "m", backend))
    assert isinstance(ours, Tokenizer)
    assert ours.encode_now("playing play") == [1, 2, 1]
    assert ours.decode([1, 2, 1]) == " playing play"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "null",
        "\x00\xff",
        '{"model": {}}',
        '{"model": 3}',
        '{"added_tokens": 3}',
        '{"added_tokens": [3]}',
        '{"added_tokens": [{"content": "x"}], "model": {"vocab": {}}}',
        '{"added_tokens": [{"content": "x", "id": "y"}], "model": {"vocab": {}}}',
        '{"model": {"vocab": [3]}}',
        '{"model": {"vocab": {"a": -7}}}',
    ],
)
def test_a_broken_tokenizer_json_is_a_broken_model(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelBroken) as caught:
        tokenizer_from_directory(tmp_path)
    assert str(tmp_path) not in caught.value.message


def test_no_tokenizer_json_is_a_broken_model(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken):
        tokenizer_from_directory(tmp_path)


def test_raw_text_is_encoded_as_by_the_models_own_tokenizer(tmp_path: Path) -> None:
    """With special tokens in a raw prompt, the ids are those of Hugging Face's tokenizer."""
    backend = train_backend()
    config = {"bos_token": "<|begin|>", "add_bos_token": True}
    path = write_directory(tmp_path / "m", backend, tokenizer_config=config)
    renderer = PromptRenderer(None, tokenizer_from_directory(path))
    begin = backend.token_to_id("<|begin|>")
    for text in (
        "<|begin|>Hello<|im_end|> world<tool_call>{}",
        "<|im_end|><|im_end|>",
        "Hi <table>",
    ):
        expected = backend.encode(text).ids
        raw = Prompt(content=text, add_special_tokens=False)
        assert asyncio.run(renderer.encode_prompt(raw)) == expected
        with_bos = asyncio.run(renderer.encode_prompt(Prompt(content=text)))
        assert with_bos == (expected if expected[0] == begin else [begin, *expected])
        plain = asyncio.run(
            renderer.encode_prompt(
                Prompt(content=text, add_special_tokens=False, parse_special=False)
            )
        )
        specials = {backend.token_to_id(name) for name in ("<|begin|>", "<|im_end|>")}
        assert isinstance(plain, list)
        assert not specials & set(plain)
        assert backend.decode(plain, skip_special_tokens=False) == text
