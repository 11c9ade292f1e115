"""Serving an engine that a program brings: its template, special tokens and tokenizer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

import dragoman
from dragoman.runtime import StartupError
from dragoman.testing import ByteTokenizer
from dragoman.types import Job, Step
from tests.support.serving import make_chat, serve_scripted

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}"
    "{% if additional_special_tokens %}{{ additional_special_tokens | join('+') }}{% endif %}"
)
# a tokenizer of four words and a special token
TOKENIZER = {
    "model": {
        "type": "WordLevel",
        "vocab": {"[UNK]": 0, "one": 1, "two": 2, "yes": 3},
        "unk_token": "[UNK]",
    },
    "pre_tokenizer": {"type": "Whitespace"},
    "added_tokens": [
        {
            "id": 4, "content": "<|end|>", "special": True, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        },
        {
            "id": 0, "content": "[UNK]", "special": True, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        },
    ],
}  # fmt: skip


class PromptEcho:
    """Answers with its prompt."""

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text=str(job.prompt), tokens=1)
        yield Step(finish="stop")


def ask(engine: Any, *texts: str, **options: Any) -> str:
    """Return the answer of an engine to a chat."""
    messages = [{"role": "user", "content": text} for text in texts or ["one"]]
    with serve_scripted(engine, **options) as server:
        body = make_chat(messages=messages)
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    assert "choices" in answer, answer
    content: str = answer["choices"][0]["message"]["content"]
    return content


SPECIAL_TOKENS: list[tuple[dict[str, Any], str]] = [
    ({}, "[one]"),
    ({"bos_token": "<s>", "eos_token": "</s>"}, "<s>[one]</s>"),
    ({"special_tokens": {"bos_token": "<s>"}}, "<s>[one]"),
    ({"special_tokens": {"bos_token": {"content": "<s>", "lstrip": False}}}, "<s>[one]"),
    ({"special_tokens": {"bos_token": "<s>"}, "bos_token": "<b>"}, "<b>[one]"),
    ({"special_tokens": {"additional_special_tokens": ["<a>", "<b>"]}}, "[one]<a>+<b>"),
]


@pytest.mark.parametrize(("options", "prompt"), SPECIAL_TOKENS)
def test_special_tokens_are_variables_of_the_template(options: dict[str, Any], prompt: str) -> None:
    assert ask(PromptEcho(), chat_template=TEMPLATE, **options) == prompt


def test_given_special_tokens_replace_those_of_the_tokenizer() -> None:
    class Engine(PromptEcho):
        tokenizer = ByteTokenizer(("<bos>", "<eos>"))

        async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
            assert isinstance(job.prompt, list)
            yield Step(text=self.tokenizer.decode(job.prompt), tokens=1, finish="stop")

    assert ask(Engine(), chat_template=TEMPLATE) == "<bos>[one]<eos>"
    assert ask(Engine(), chat_template=TEMPLATE, eos_token="!") == "<bos>[one]!"


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("name", ["own.jinja", "tokenizer_config.json"])
def test_a_template_is_read_from_a_file(tmp_path: Path, name: str, as_text: bool) -> None:
    path = tmp_path / name
    text = "{{ messages[0].content }}!"
    path.write_text(text if name.endswith("jinja") else json.dumps({"chat_template": text}))
    assert ask(PromptEcho(), chat_template=str(path) if as_text else path) == "one!"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"chat_template": "no-such-file.jinja"}, "neither a template nor a file"),
    ({"chat_template": Path("no-such-file.jinja")}, "neither a template nor a file"),
    ({"chat_template": 5}, "must be text or a path, not int"),
    ({"special_tokens": ["<s>"]}, "must be a mapping"),
    ({"special_tokens": {"bos": "<s>"}}, "'bos' is not a name such as `bos_token`"),
    ({"special_tokens": {"bos_token": 1}}, "`bos_token` must be text, not int"),
    ({"bos_token": 1}, "`bos_token` must be text, not int"),
    ({"tokenizer": "no-such-directory"}, "no `tokenizer.json` at no-such-directory"),
    ({"tokenizer": object()}, "pass a directory with a `tokenizer.json`"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_a_wrong_option_is_an_error_at_startup(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        dragoman.app(PromptEcho(), **options)


class WordEngine:
    """Answers `yes` and the end token, as ids."""

    def __init__(self) -> None:
        self.prompts: list[Any] = []

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.prompts.append(job.prompt)
        yield Step(ids=[3], tokens=1)
        yield Step(finish="stop", stop_id=4)


class FastTokenizer:
    """What we use of a fast tokenizer of `transformers`."""

    def __init__(self) -> None:
        self.backend_tokenizer = tokenizers.Tokenizer.from_str(json.dumps(TOKENIZER))
        self.special_tokens_map = {"eos_token": "<|end|>"}
        self.chat_template = "{{ messages[0].content }}{{ eos_token }}"


def write_directory(path: Path) -> Path:
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    config = {"eos_token": "<|end|>", "chat_template": FastTokenizer().chat_template}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("kind", ["directory", "file", "text", "object", "transformers"])
def test_an_engine_with_a_tokenizer_gets_ids_and_yields_ids(tmp_path: Path, kind: str) -> None:
    directory = write_directory(tmp_path)
    options: dict[str, dict[str, Any]] = {
        "directory": {"tokenizer": directory},
        "file": {"tokenizer": directory / "tokenizer.json"},
        "text": {"tokenizer": str(directory)},
        "object": {
            "tokenizer": FastTokenizer().backend_tokenizer,
            "chat_template": FastTokenizer().chat_template,
            "eos_token": "<|end|>",
        },
        "transformers": {"tokenizer": FastTokenizer()},
    }
    engine = WordEngine()
    # the client's text does not become a special token
    assert ask(engine, "two one <|end|>", **options[kind]) == "yes"
    [ids] = engine.prompts
    assert ids[:2] == [2, 1]
    assert ids[-1] == 4
    assert 4 not in ids[:-1]


def test_a_tokenizer_of_the_engine_is_used_like_the_option() -> None:
    engine: Any = WordEngine()
    engine.tokenizer = FastTokenizer()
    assert ask(engine, "two", chat_template="{{ messages[0].content }}") == "yes"
    assert engine.prompts == [[2]]
    engine.tokenizer = object()
    with pytest.raises(TypeError, match=r"pass a directory with a `tokenizer\.json`"):
        dragoman.app(engine)
