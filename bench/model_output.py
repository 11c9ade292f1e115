"""What models say, for measuring what reading it costs: calls and answers of a wanted length.

Texts are cut into the default model's tokens, except that a format's marks are one token each, as
they are in the vocabularies of the models that speak so.
"""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct
from tokenizers import Tokenizer as Backend

from bench.turns import WORDS
from dragoman.engines.llamacpp import gguf
from dragoman.formats import find_reasoning, find_tools
from dragoman.output.library import collect_markers
from dragoman.tokenizers.from_gguf import backend_from_gguf

TOOL = {
    "name": "write",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}}
        | {"records": {"type": "array"}},
    },
}
LINES = (
    '    if {a}[{n}] < {b}: return "{a}"\n',
    "# {a} {b}, then {a} again: it's {n} <b>{b}</b>\n",
    "    {a} = {{'{b}': [{n}, {n}.5], '{a}': None}}\n",
    "The {a} by the {b} was quiet, and so were the {n} others.\n\n",
    "    print(f(x={n}), {a} >> {n})  # \\d+\\s*\n",
)


class Said(Struct, frozen=True):
    """One thing a model says, cut into its tokens, and what has to come out of it."""

    pieces: list[str]
    arguments: dict[str, Any] | None = None
    reasoning: str = ""
    text: str = ""


class Speech(Struct, frozen=True):
    """How models of one format write a call, and thoughts with an answer."""

    format: str
    call: Callable[[dict[str, Any]], str]
    reasoning: str = "think"
    answer: str = "<think>{thoughts}</think>{answer}"


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tags(arguments: dict[str, Any]) -> str:
    said = {key: one if isinstance(one, str) else _dumps(one) for key, one in arguments.items()}
    inner = "".join(f"<parameter={key}>\n{one}\n</parameter>\n" for key, one in said.items())
    return f"<tool_call>\n<function=write>\n{inner}</function>\n</tool_call>"


def _braces(value: object) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{_braces(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_braces, value)) + "]"
        case str():
            return f'<|"|>{value}<|"|>'
    return _dumps(value)


def _python(arguments: dict[str, Any]) -> str:
    return f"[write({', '.join(f'{key}={one!r}' for key, one in arguments.items())})]"


SPEECHES = (
    Speech(
        "hermes_json",
        lambda one: f'<tool_call>\n{{"name": "write", "arguments": {_dumps(one)}}}\n</tool_call>',
    ),
    Speech("qwen3_coder", _tags),
    Speech(
        "deepseek_v31",
        lambda one: (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{_dumps(one)}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    Speech(
        "gemma4",
        lambda one: f"<|tool_call>call:write{_braces(one)}<tool_call|>",
        "gemma4_channel",
        "<|channel>thought\n{thoughts}<channel|>{answer}",
    ),
    Speech(
        "harmony",
        lambda one: (
            "<|channel|>commentary to=functions.write <|constrain|>json"
            f"<|message|>{_dumps(one)}<|call|>"
        ),
        "harmony",
        "<|channel|>analysis<|message|>{thoughts}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>{answer}<|return|>",
    ),
    Speech("pythonic", _python),
)


class Cutter:
    """Cuts a text into tokens."""

    def __init__(self, model: str) -> None:
        backend = backend_from_gguf(gguf.read_header(Path(model)).metadata)
        assert backend is not None
        self._backend: Backend = backend

    def cut(self, text: str, marks: list[str]) -> list[str]:
        between = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
        return [piece for part in between for piece in ([part] if part in marks else self(part))]

    def __call__(self, text: str) -> list[str]:
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        starts = sorted({start for start, _ in offsets})
        return [text[at:to] for at, to in pairwise([*starts, len(text)])]


@cache
def _line(number: int) -> str:
    dice = random.Random(number)
    names = {"a": dice.choice(WORDS), "b": dice.choice(WORDS), "n": dice.randrange(100)}
    return dice.choice(LINES).format(**names)


def lines(count: int) -> str:
    """Lines of prose and code."""
    return "".join(map(_line, range(count))).strip()


def one_string(count: int) -> dict[str, Any]:
    """A file to be written: nearly all of the call is one string."""
    return {"path": "src/lamp.py", "text": lines(count)}


def plain_words(count: int) -> dict[str, Any]:
    """One string of nothing but words: no quotes, brackets or escapes for a parser to stop at."""
    return {"text": " ".join(WORDS[at % 24] for at in range(8 * count))}


@cache
def _record(number: int) -> dict[str, Any]:
    dice = random.Random(number)
    said = {"id": number, "name": dice.choice(WORDS), "on": True, "tags": [dice.choice(WORDS), "b"]}
    return said | {"at": {"x": dice.randrange(100), "y": None}}


def many_values(count: int) -> dict[str, Any]:
    """A list of small records: nearly all of the call is structure."""
    return {"path": "a.json", "records": [_record(at) for at in range(count)]}


class Writer:
    """Writes calls and answers of about as many tokens as are wanted."""

    def __init__(self, model: str) -> None:
        self._cut = Cutter(model).cut

    def says(
        self, speech: Speech, tokens: int, shape: Callable[[int], dict[str, Any]] | None
    ) -> Said:
        """A call whose arguments have that shape; without one, thoughts and an answer."""
        if shape is not None:
            make = shape
            pieces, count = self._long(lambda count: speech.call(make(count)), speech, tokens)
            return Said(pieces, shape(count))

        def whole(count: int) -> str:
            return speech.answer.format(thoughts=lines(count), answer=lines(count + 1))

        pieces, count = self._long(whole, speech, tokens)
        return Said(pieces, reasoning=lines(count), text=lines(count + 1))

    def _long(
        self, text: Callable[[int], str], speech: Speech, tokens: int
    ) -> tuple[list[str], int]:
        """The shortest of the texts that has enough tokens, and its number."""
        some, marks = range(tokens // 4), self._marks(speech)
        count = bisect_left(some, tokens, key=lambda at: len(self._cut(text(at), marks)))
        return self._cut(text(count), marks), count

    def _marks(self, speech: Speech) -> list[str]:
        found = collect_markers(find_tools(speech.format), find_reasoning(speech.reasoning))
        quotes = ["<｜tool▁sep｜>", '<|"|>']
        return sorted({mark for mark in found if len(mark) > 3} | set(quotes), key=len)[::-1]
