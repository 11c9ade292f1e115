"""The tokens with which a model fills in text, from its file or by their texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.tokenizers.from_gguf import vocabulary_from_gguf
from dragoman.tokenizers.from_json import make_vocabulary, read_directory
from dragoman.tokenizers.vocabulary import InfillTokens

WORDS = ["a", "b", "c", "d", "e", "f"]


def read_gguf(tokens: list[str], **ids: Any) -> InfillTokens | None:
    metadata: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
    metadata |= {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    return vocabulary_from_gguf(metadata).infill


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (
            {"fim_pre": 0, "fim_suf": 1, "fim_mid": 2, "fim_pad": 3, "fim_rep": 4, "fim_sep": 5},
            InfillTokens(prefix=0, suffix=1, middle=2, pad=3, repository=4, file=5),
        ),
        ({"prefix": 0, "suffix": 1, "middle": 2}, InfillTokens(prefix=0, suffix=1, middle=2)),
        ({"fim_pre": 0, "fim_suf": 1}, None),
        ({"fim_pre": 0, "fim_suf": 1, "fim_mid": 99}, None),
        ({}, None),
    ],
)
def test_tokens_that_a_file_lists(ids: dict[str, int], expected: InfillTokens | None) -> None:
    assert read_gguf(WORDS, **ids) == expected


TEXTS: list[tuple[list[str], InfillTokens | None]] = [
    (
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"],
        InfillTokens(prefix=0, suffix=1, middle=2, pad=3),
    ),
    (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], InfillTokens(prefix=0, suffix=1, middle=2)),
    (["▁<PRE>", "▁<SUF>", "▁<MID>"], InfillTokens(prefix=0, suffix=1, middle=2)),
    (
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
        InfillTokens(prefix=0, suffix=1, middle=2),
    ),
    (
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        InfillTokens(prefix=0, suffix=1, middle=2),
    ),
    (["[PREFIX]", "[SUFFIX]"], InfillTokens(prefix=0, suffix=1)),
    (["<fim_prefix>", "<fim_suffix>"], None),
    (["<repo_name>", "<file_sep>"], None),
]


@pytest.mark.parametrize(("tokens", "expected"), TEXTS)
def test_tokens_by_their_texts(
    tokens: list[str], expected: InfillTokens | None, tmp_path: Path
) -> None:
    assert read_gguf(tokens) == expected
    added = [{"id": token, "content": text, "special": True} for token, text in enumerate(tokens)]
    model = {"type": "BPE", "vocab": {}, "merges": []}
    file = {"version": "1.0", "added_tokens": added, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    assert make_vocabulary(read_directory(tmp_path)).infill == expected


def test_what_the_file_lists_takes_precedence() -> None:
    tokens = [*WORDS, "<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    found = read_gguf(tokens, fim_pre=0)
    assert found == InfillTokens(prefix=0, suffix=7, middle=8)
