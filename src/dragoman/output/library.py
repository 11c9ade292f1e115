"""Reads what a model says: as a library, for text from anywhere.

    parser = OutputParser("hermes_json", "think", tools=tools, prompt=prompt)
    for piece in pieces:
        spans = parser.feed(piece)
    spans = parser.close()

A parser takes the text in any pieces and gives spans on four channels: `text`, `reasoning`,
`tool_name` and `tool_args`. How the text was cut never changes what comes out. It raises on no text
at all: what cannot be a call is text. `docs/formats.md` has the policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

from dragoman.formats import find_reasoning, find_tools, reasoning_formats, tool_formats
from dragoman.output.calls import DeclaredTools
from dragoman.output.parser import Parser
from dragoman.output.rules import DEFAULT_POLICY, FormatRules, ParserPolicy
from dragoman.output.span import Span
from dragoman.output.spec import (
    GAP,
    NO_REASONING,
    MessageHeader,
    NamedObject,
    NestedElements,
    ReasoningFormat,
    TaggedArguments,
    ToolFormat,
)
from dragoman.output.text_buffer import find_last_marker
from dragoman.types import Tool

__all__ = [
    "OutputParser",
    "ParserPolicy",
    "Span",
    "collect_markers",
    "list_formats",
    "opens_inside",
    "parse_reasoning_complete",
    "parse_tool_call_complete",
]

MAX_CONTINUED_REASONING = 2000  # characters; thoughts that a client wants continued may be as long
TAG = re.compile(r"<[^\s<>]{1,30}>|\[/?[A-Z_]{1,30}\]")
# fields of a format that hold no markers
FIELDS_WITHOUT_MARKERS = {"name", "name_pattern", "key_pattern", "models", "example", "aliases"}
FIELDS_WITHOUT_MARKERS |= {"template_hints", "default_reasoning", "answer_separator", "trim"}
FIELDS_WITHOUT_MARKERS |= {"untyped", "item", "id", "arguments", "routes"}
FIELDS_WITHOUT_MARKERS |= {"spellings", "key_spelling", "separator"}
ToolDeclarations = Sequence[Tool | Mapping[str, Any]]


@lru_cache(maxsize=64)
def _combine_by_name(tools: str | None, reasoning: str | None) -> FormatRules:
    return FormatRules(
        None if tools is None else find_tools(tools),
        None if reasoning is None else find_reasoning(reasoning),
    )


def combine_formats(
    tools: str | ToolFormat | None, reasoning: str | ReasoningFormat | None
) -> FormatRules:
    """Two formats put together; by name they are put together once."""
    if isinstance(tools, ToolFormat) or isinstance(reasoning, ReasoningFormat):
        return FormatRules(
            find_tools(tools) if isinstance(tools, str) else tools,
            find_reasoning(reasoning) if isinstance(reasoning, str) else reasoning,
        )
    return _combine_by_name(tools, reasoning)


class OutputParser(Parser):
    """Reads one answer of one model."""

    def __init__(
        self,
        format: str | ToolFormat | None = None,  # noqa: A002
        reasoning: str | ReasoningFormat | None = None,
        *,
        tools: ToolDeclarations | None = None,
        prompt: str | None = None,
        inside: bool | None = None,
        policy: ParserPolicy = DEFAULT_POLICY,
    ) -> None:
        """`tools` None accepts every name; `prompt` or `inside` say where the answer begins."""
        both = combine_formats(format, reasoning)
        if inside is None and prompt is not None:
            inside = opens_inside(both.reasoning, prompt)
        header = both.header
        within = header is not None and prompt is not None and prompt.endswith(header.open)
        declared = None if tools is None else dict(map(_read_declaration, tools))
        toolbox = DeclaredTools(declared, accept=policy.undeclared == "accept")
        super().__init__(both, toolbox, inside, policy, header=within)


def _read_declaration(tool: Tool | Mapping[str, Any]) -> tuple[str, Any]:
    if isinstance(tool, Tool):
        return tool.name, tool.parameters
    said = tool.get("function", tool)
    if not isinstance(said, Mapping):
        raise ValueError("a tool is declared with a name and parameters")
    return str(said.get("name", "")), said.get("parameters")


def opens_inside(reasoning: ReasoningFormat, prompt: str) -> bool:
    """Whether a prompt ends inside thoughts.

    A marker that somebody only mentioned is followed by other markers, or by a lot of text.
    """
    header = reasoning.header
    if header is not None and header.routes:
        return _find_route(header, prompt) == "reasoning"
    opened, closed = (
        find_last_marker(prompt, reasoning.open),
        find_last_marker(prompt, reasoning.close),
    )
    after = prompt[opened[1] :]
    return opened > closed and len(after) <= MAX_CONTINUED_REASONING and TAG.search(after) is None


def _find_route(header: MessageHeader, prompt: str) -> str | None:
    """Where a message goes whose header a prompt ends with; None if it does not end in one."""
    start, end = find_last_marker(prompt, header.open)[0], find_last_marker(prompt, header.end)[0]
    if not start < end or find_last_marker(prompt, header.close)[0] > start:
        return None
    routes = (where for pattern, where in header.routes if re.search(pattern, prompt[start:end]))
    return next(routes, None)


def collect_markers(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> frozenset[str]:
    """The markers that two formats look for, around a call and inside it."""
    found = {
        marker.replace(GAP, "") for one in (tools, reasoning) for marker in _iterate_texts(one)
    }
    return frozenset(found - {""})


def is_marker_token(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None, token: str
) -> bool:
    """Whether a token is one of the markers, or a part of one, or of a pattern that is looked for."""
    bodies = () if tools is None else tools.bodies
    patterns = [
        one.name_pattern
        for one in bodies
        if isinstance(one, NamedObject | TaggedArguments | NestedElements)
    ]
    escaped = re.escape(token)
    return any(token in marker for marker in collect_markers(tools, reasoning)) or any(
        token in pattern or escaped in pattern for pattern in patterns
    )


def _iterate_texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, tuple):
        for one in data:
            yield from _iterate_texts(one)
    elif is_dataclass(data):
        for part in fields(data):
            if part.name not in FIELDS_WITHOUT_MARKERS:
                yield from _iterate_texts(getattr(data, part.name))


def parse_tool_call_complete(text: str, parser: str) -> dict[str, Any]:
    """The text and the calls of a whole answer."""
    spans = _parse_whole(OutputParser(parser), text)
    calls: list[dict[str, str]] = []
    for span in spans:
        if span.channel == "tool_name":
            calls.append({"name": span.text, "arguments": ""})
        elif span.channel == "tool_args":
            calls[span.call]["arguments"] += span.text
    return {"normal_text": _join_channel(spans, "text"), "tool_calls": calls}


def parse_reasoning_complete(text: str, parser: str) -> dict[str, str]:
    """The text and the thoughts of a whole answer."""
    spans = _parse_whole(OutputParser(reasoning=parser), text)
    return {
        "normal_text": _join_channel(spans, "text"),
        "reasoning_text": _join_channel(spans, "reasoning"),
    }


def _parse_whole(parser: OutputParser, text: str) -> list[Span]:
    return [*parser.feed(text), *parser.close()]


def _join_channel(spans: list[Span], channel: str) -> str:
    return "".join(span.text for span in spans if span.channel == channel)


def list_formats() -> dict[str, list[str]]:
    """The names of all formats, by kind."""
    return {"tools": list(tool_formats()), "reasoning": [NO_REASONING.name, *reasoning_formats()]}
