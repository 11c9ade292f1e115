"""Output as models write it, for measuring the parser: calls and answers of a given length.

Texts are split into tokens of the default model, except that each marker of a format is one token,
as it is in the vocabularies of the models that use the format.
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

from msgspec import Struct
from tokenizers import Tokenizer as Backend

from bench.next_turn import WORDS
from dragoman.engines.llamacpp import gguf
from dragoman.formats import find_reasoning, find_tools
from dragoman.output.library import collect_markers
from dragoman.tokenizers.from_gguf import backend_from_gguf

Arguments = dict[str, object]

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


class SampleOutput(Struct, frozen=True):
    """One output of a model, split into tokens, and what the parser must make of it."""

    pieces: list[str]
    arguments: Arguments | None = None
    reasoning: str = ""
    text: str = ""


class FormatWriter(Struct, frozen=True):
    """How models of one format write a call, and reasoning with an answer."""

    format: str
    write_call: Callable[[Arguments], str]
    reasoning: str = "think"
    answer: str = "<think>{reasoning}</think>{answer}"


def _encode_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_hermes_call(arguments: Arguments) -> str:
    call = f'{{"name": "write", "arguments": {_encode_json(arguments)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _write_qwen_call(arguments: Arguments) -> str:
    texts = {
        key: value if isinstance(value, str) else _encode_json(value)
        for key, value in arguments.items()
    }
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function=write>\n{inner}</function>\n</tool_call>"


def _write_deepseek_call(arguments: Arguments) -> str:
    return (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜>{_encode_json(arguments)}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def _write_gemma_call(arguments: Arguments) -> str:
    return f"<|tool_call>call:write{_encode_gemma(arguments)}<tool_call|>"


def _encode_gemma(value: object) -> str:
    match value:
        case dict():
            members = (f"{key}:{_encode_gemma(member)}" for key, member in value.items())
            return "{" + ",".join(members) + "}"
        case list():
            return "[" + ",".join(map(_encode_gemma, value)) + "]"
        case str():
            return f'<|"|>{value}<|"|>'
    return _encode_json(value)


def _write_harmony_call(arguments: Arguments) -> str:
    return (
        "<|channel|>commentary to=functions.write <|constrain|>json"
        f"<|message|>{_encode_json(arguments)}<|call|>"
    )


def _write_python_call(arguments: Arguments) -> str:
    return f"[write({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]"


FORMAT_WRITERS = (
    FormatWriter("hermes_json", _write_hermes_call),
    FormatWriter("qwen3_coder", _write_qwen_call),
    FormatWriter("deepseek_v31", _write_deepseek_call),
    FormatWriter(
        "gemma4",
        _write_gemma_call,
        "gemma4_channel",
        "<|channel>thought\n{reasoning}<channel|>{answer}",
    ),
    FormatWriter(
        "harmony",
        _write_harmony_call,
        "harmony",
        "<|channel|>analysis<|message|>{reasoning}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>{answer}<|return|>",
    ),
    FormatWriter("pythonic", _write_python_call),
)


class TokenSplitter:
    """Splits a text into tokens of the default model and markers."""

    def __init__(self, model: str) -> None:
        backend = backend_from_gguf(gguf.read_header(Path(model)).metadata)
        assert backend is not None
        self._backend: Backend = backend

    def split(self, text: str, markers: list[str]) -> list[str]:
        parts = re.split("(" + "|".join(map(re.escape, markers)) + ")", text)
        return [
            piece
            for part in parts
            for piece in ([part] if part in markers else self._split_plain(part))
        ]

    def _split_plain(self, text: str) -> list[str]:
        offsets = self._backend.encode(text, add_special_tokens=False).offsets
        starts = sorted({start for start, _ in offsets})
        return [text[start:end] for start, end in pairwise([*starts, len(text)])]


@cache
def _make_line(number: int) -> str:
    rng = random.Random(number)
    names = {"a": rng.choice(WORDS), "b": rng.choice(WORDS), "n": rng.randrange(100)}
    return rng.choice(LINES).format(**names)


def make_lines(count: int) -> str:
    """Make lines of prose and code."""
    return "".join(map(_make_line, range(count))).strip()


def make_one_string(count: int) -> Arguments:
    """Make the arguments to write a file: nearly all of the call is one string."""
    return {"path": "src/lamp.py", "text": make_lines(count)}


def make_plain_words(count: int) -> Arguments:
    """Make one string of words: no quotes, brackets or escapes at which a parser has to stop."""
    return {"text": " ".join(WORDS[index % 24] for index in range(8 * count))}


@cache
def _make_record(number: int) -> Arguments:
    rng = random.Random(number)
    record: Arguments = {"id": number, "name": rng.choice(WORDS), "on": True}
    record["tags"] = [rng.choice(WORDS), "b"]
    record["at"] = {"x": rng.randrange(100), "y": None}
    return record


def make_many_values(count: int) -> Arguments:
    """Make a list of small records: nearly all of the call is structure."""
    return {"path": "a.json", "records": [_make_record(number) for number in range(count)]}


class OutputGenerator:
    """Generates calls and answers with a given number of tokens or slightly more."""

    def __init__(self, model: str) -> None:
        self._split = TokenSplitter(model).split

    def generate(
        self,
        writer: FormatWriter,
        tokens: int,
        make_arguments: Callable[[int], Arguments] | None,
    ) -> SampleOutput:
        """Generate a call with such arguments, or reasoning and an answer if there are none."""
        if make_arguments is not None:
            pieces, count = self._find_length(
                lambda count: writer.write_call(make_arguments(count)), writer, tokens
            )
            return SampleOutput(pieces, make_arguments(count))

        def write_answer(count: int) -> str:
            return writer.answer.format(reasoning=make_lines(count), answer=make_lines(count + 1))

        pieces, count = self._find_length(write_answer, writer, tokens)
        return SampleOutput(pieces, reasoning=make_lines(count), text=make_lines(count + 1))

    def _find_length(
        self, make_text: Callable[[int], str], writer: FormatWriter, tokens: int
    ) -> tuple[list[str], int]:
        """Return the tokens of the shortest text that has enough of them, and its number."""
        counts, markers = range(tokens // 4), _list_markers(writer)
        count = bisect_left(
            counts, tokens, key=lambda count: len(self._split(make_text(count), markers))
        )
        return self._split(make_text(count), markers), count


def _list_markers(writer: FormatWriter) -> list[str]:
    """Return the markers that are tokens, the longest first."""
    markers = collect_markers(find_tools(writer.format), find_reasoning(writer.reasoning))
    inner = {"<｜tool▁sep｜>", '<|"|>'}
    return sorted({marker for marker in markers if len(marker) > 3} | inner, key=len)[::-1]
