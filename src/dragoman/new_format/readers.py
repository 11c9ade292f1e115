"""Tries formats on an answer, and tells which of them read it.

A format reads an answer if its parser finds calls and leaves nothing but prose: no tag, no object.
`find_readers` tries the formats that exist; `infer` tries those that it proposes in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dragoman.detection.markers import (
    allows_unmarked_calls,
    contains_any_marker,
    get_call_openers,
)
from dragoman.formats import get_reasoning_formats, get_tool_formats
from dragoman.new_format.markup import contains_markup
from dragoman.output.library import OutputParser, collect_markers
from dragoman.output.spec import MarkerPair, ReasoningFormat, ToolFormat
from dragoman.testing.format_checks import fold_spans, parse_pieces
from dragoman.types import Json

Declarations = Sequence[Mapping[str, Json]]
Reasoning = str | ReasoningFormat | None
SYMBOL = re.compile(r"[^\w\s.,;:!?'\"()-]")  # in a word before a call: a marker, not prose
# tokens with which a model ends its turn; raw outputs contain them
END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<｜end▁of▁sentence｜>",
)
REASONING_BLOCK = re.compile(
    r"\s*(?P<open><(?P<tag>[^<>/\n]{1,40})>)(?P<text>[^<>{}]*)(?P<close></(?P=tag)>)"
)


@dataclass(frozen=True)
class Reading:
    """What a format reads in an answer."""

    tools: ToolFormat | None
    reasoning: Reasoning
    text: str
    reasoning_text: str
    calls: tuple[tuple[str, str], ...]  # names, and arguments as JSON text
    word_before_call: str = ""  # the last word before the first call

    @property
    def is_complete(self) -> bool:
        """Whether there are calls, and nothing but prose besides."""
        is_prose = not contains_markup(self.text) and not contains_markup(self.reasoning_text)
        is_unmarked = self.tools is not None and allows_unmarked_calls(self.tools)
        has_other_marker = is_unmarked and SYMBOL.search(self.word_before_call) is not None
        return bool(self.calls) and is_prose and not has_other_marker


def read_answer(
    tools: ToolFormat | None,
    reasoning: Reasoning,
    answer: str,
    declared: Declarations | None,
    prompt: str | None = None,
) -> Reading:
    """Parse an answer with two formats. `prompt`: what the template writes before the answer."""
    registered = tools is not None and get_tool_formats().get(tools.name) is tools
    parser = OutputParser(
        tools.name if tools is not None and registered else tools,
        reasoning,
        tools=declared,
        prompt=prompt,
    )
    spans = parse_pieces(parser, [answer])
    output = fold_spans(spans)
    before = takewhile(lambda span: span.channel != "tool_name", spans)
    text = "".join(span.text for span in before if span.channel == "text")
    last_word = (text.split() or [""])[-1]
    calls = tuple(output.raw_calls)
    return Reading(tools, reasoning, output.text, output.reasoning, calls, last_word)


def find_readers(answer: str, declared: Declarations | None) -> list[Reading]:
    """Return how the known formats read an answer: those that read all of it."""
    readings: list[Reading] = []
    for tools in filter(lambda tools: _may_read(tools, answer), get_tool_formats().values()):
        choices = (
            read_answer(tools, reasoning, answer, declared, prompt)
            for reasoning in _list_known_reasoning(answer)
            for prompt in _list_prompts(tools)
        )
        complete = next((reading for reading in choices if reading.is_complete), None)
        readings += [] if complete is None else [complete]
    most = max((len(reading.calls) for reading in readings), default=0)
    found = [reading for reading in readings if len(reading.calls) == most]
    return sorted(found, key=lambda reading: len(collect_markers(reading.tools, None)))


def _list_prompts(tools: ToolFormat) -> list[str | None]:
    """Return how a prompt may end: the template may open the header of a message."""
    return [None, *(tools.header.open if tools.header is not None else ())]


def _may_read(tools: ToolFormat, answer: str) -> bool:
    """Whether a format is worth trying; a cheap check."""
    if tools.header is not None or allows_unmarked_calls(tools):
        return True
    return contains_any_marker(get_call_openers(tools), answer)


def strip_end_of_turn(answer: str) -> str:
    """Return an answer without the tokens that end it and the white space around it."""
    answer = answer.rstrip()
    while answer.endswith(END_TOKENS):
        token = next(token for token in END_TOKENS if answer.endswith(token))
        answer = answer.removesuffix(token).rstrip()
    return answer.lstrip("\n")


def list_reasoning(name: str, answer: str) -> Iterator[Reasoning]:
    """Yield the reasoning formats that an answer may have; the last is one that is not known."""
    yield from _list_known_reasoning(answer)
    block = REASONING_BLOCK.match(answer)
    if block is not None and " " in block["text"].strip():
        yield ReasoningFormat(
            name=name,
            models="",
            example=f"{block['open']}reasoning{block['close']}answer",
            open=(block["open"],),
            close=(block["close"],),
        )


def _list_known_reasoning(answer: str) -> Iterator[str | None]:
    yield None
    found = [
        reasoning
        for reasoning in get_reasoning_formats().values()
        if not reasoning.keeps_markers
        and reasoning.header is None
        and contains_any_marker(reasoning.close, answer)
    ]
    yield from (reasoning.name for reasoning in sorted(found, key=_count_markers))


def _count_markers(reasoning: ReasoningFormat) -> int:
    wrapper: MarkerPair = reasoning.answer_wrapper
    return len(wrapper.open) + len(reasoning.dropped)


def list_names(declared: Declarations | None) -> frozenset[str]:
    """Return the names of declared tools."""
    return frozenset(read_schemas(declared))


def read_schemas(declared: Declarations | None) -> dict[str, dict[str, Json]]:
    """Return the parameters of declared tools by name."""
    schemas: dict[str, dict[str, Json]] = {}
    for tool in declared or ():
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schemas[str(function["name"])] = function.get("parameters") or {}
    return schemas
