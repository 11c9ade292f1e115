"""The tokenizer and the chat template of the default model, for engines that have none."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dragoman.engines.llamacpp import gguf
from dragoman.tokenizers.tokenizer import Tokenizer, tokenizer_from_gguf


@cache
def _read_header(path: Path) -> gguf.GgufHeader:
    return gguf.read_header(path)


def read_tokenizer(path: Path) -> Tokenizer:
    tokenizer = tokenizer_from_gguf(_read_header(path).metadata)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


def read_chat_template(path: Path) -> str:
    return str(_read_header(path).metadata["tokenizer.chat_template"])


def make_serve_options(path: Path, **options: object) -> str:
    """Make the arguments of `run_engine_server` for a scripted engine that takes these tokens."""
    module = "__import__('tests.support.default_tokenizer', fromlist=['x'])"
    file = f"__import__('pathlib').Path({str(path)!r})"
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    return (
        "t.ScriptedEngine('x', tokens=True, context=8192, embeddings=384, slots=4), port=0, "
        f"name='scripted', tokenizer={module}.read_tokenizer({file}), "
        f"chat_template={module}.read_chat_template({file}){more}"
    )
