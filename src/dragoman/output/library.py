"""The parser as a library, for model output from any source.

    parser = OutputParser("hermes_json", "think", tools=tools, prompt=prompt)
    for piece in pieces:
        spans = parser.feed(piece)
    spans = parser.close()

A parser takes the text in pieces of any size and returns spans on four channels: `text`,
`reasoning`, `tool_name` and `tool_args`. The cuts between pieces never change the result. No text
makes it raise: anything that is not a call is text. `docs/formats.md` describes the policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache

from dragoman.formats import (
    UNPARSED,
    find_reasoning,
    find_tools,
    get_reasoning_formats,
    get_tool_formats,
)
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
from dragoman.types import Json, Tool

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

MAX_CONTINUED_REASONING = 2000  # characters of reasoning in a message that the client continues
TAG = re.compile(r"<[^\s<>]{1,30}>|\[/?[A-Z_]{1,30}\]")
# fields of a format that contain no markers
FIELDS_WITHOUT_MARKERS = {"name", "name_pattern", "key_pattern", "models", "example", "aliases"}
FIELDS_WITHOUT_MARKERS |= {"template_hints", "default_reasoning", "answer_separator", "trim"}
FIELDS_WITHOUT_MARKERS |= {"untyped", "item", "id", "arguments", "routes"}
FIELDS_WITHOUT_MARKERS |= {"spellings", "key_spelling", "separator"}
FIELDS_WITHOUT_MARKERS |= {"suffixes", "evidence", "sources"}
ToolDeclarations = Sequence[Tool | Mapping[str, Json]]


def _find_tools(tools: str | ToolFormat | None) -> ToolFormat | None:
    if not isinstance(tools, str):
        return tools
    return None if tools in UNPARSED else find_tools(tools)


@lru_cache(maxsize=64)
def _combine_by_name(tools: str | None, reasoning: str | None) -> FormatRules:
    return FormatRules(
        _find_tools(tools),
        None if reasoning is None else find_reasoning(reasoning),
    )


def combine_formats(
    tools: str | ToolFormat | None, reasoning: str | ReasoningFormat | None
) -> FormatRules:
    """Combine two formats; a pair of names is combined once and cached."""
    if isinstance(tools, ToolFormat) or isinstance(reasoning, ReasoningFormat):
        return FormatRules(
            _find_tools(tools),
            find_reasoning(reasoning) if isinstance(reasoning, str) else reasoning,
        )
    return _combine_by_name(tools, reasoning)


class OutputParser(Parser):
    """Parses one answer of one model."""

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
        """`tools=None` accepts every name. `prompt` or `inside` says how the answer starts."""
        rules = combine_formats(format, reasoning)
        if inside is None and prompt is not None:
            inside = opens_inside(rules.reasoning, prompt)
        header = rules.header
        in_header = header is not None and prompt is not None and prompt.endswith(header.open)
        declared = None if tools is None else dict(map(_read_declaration, tools))
        declared_tools = DeclaredTools(declared, accept=policy.undeclared == "accept")
        super().__init__(rules, declared_tools, inside, policy, header=in_header)


def _read_declaration(tool: Tool | Mapping[str, Json]) -> tuple[str, Json]:
    if isinstance(tool, Tool):
        return tool.name, tool.parameters
    declaration = tool.get("function", tool)
    if not isinstance(declaration, Mapping):
        raise ValueError("a tool must be declared with a name and parameters")
    return str(declaration.get("name", "")), declaration.get("parameters")


def opens_inside(reasoning: ReasoningFormat, prompt: str) -> bool:
    """Whether a prompt ends inside reasoning.

    A marker that is only mentioned is followed by other markers, or by a lot of text.
    """
    header = reasoning.header
    if header is not None and header.routes:
        return _find_route(header, prompt) == "reasoning"
    if reasoning.opens_at_start and prompt.endswith(reasoning.opens_at_start):
        return True
    opened = find_last_marker(prompt, reasoning.open)
    closed = find_last_marker(prompt, reasoning.close)
    after = prompt[opened[1] :]
    return opened > closed and len(after) <= MAX_CONTINUED_REASONING and TAG.search(after) is None


def _find_route(header: MessageHeader, prompt: str) -> str | None:
    """Return the route of the header that a prompt ends with, or None."""
    start, end = find_last_marker(prompt, header.open)[0], find_last_marker(prompt, header.end)[0]
    if not start < end or find_last_marker(prompt, header.close)[0] > start:
        return None
    routes = (route for pattern, route in header.routes if re.search(pattern, prompt[start:end]))
    return next(routes, None)


def collect_markers(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> frozenset[str]:
    """Return the markers of two formats, around a call and inside it."""
    markers = {
        marker.replace(GAP, "") for spec in (tools, reasoning) for marker in _iterate_texts(spec)
    }
    return frozenset(markers - {""})


def is_marker_token(
    tools: ToolFormat | None, reasoning: ReasoningFormat | None, token: str
) -> bool:
    """Whether a token is a marker, part of a marker, or part of a name pattern."""
    bodies = () if tools is None else tools.bodies
    patterns = [
        body.name_pattern
        for body in bodies
        if isinstance(body, NamedObject | TaggedArguments | NestedElements)
    ]
    escaped = re.escape(token)
    return any(token in marker for marker in collect_markers(tools, reasoning)) or any(
        token in pattern or escaped in pattern for pattern in patterns
    )


def _iterate_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _iterate_texts(item)
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in FIELDS_WITHOUT_MARKERS:
                yield from _iterate_texts(getattr(value, field.name))


def parse_tool_call_complete(text: str, parser: str) -> dict[str, Json]:
    """Parse a whole answer into text and calls."""
    spans = _parse_whole(OutputParser(parser), text)
    calls: list[dict[str, str]] = []
    for span in spans:
        if span.channel == "tool_name":
            calls.append({"name": span.text, "arguments": ""})
        elif span.channel == "tool_args":
            calls[span.call]["arguments"] += span.text
    return {"normal_text": _join_channel(spans, "text"), "tool_calls": calls}


def parse_reasoning_complete(text: str, parser: str) -> dict[str, str]:
    """Parse a whole answer into text and reasoning."""
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
    """Return the names of all formats, by kind."""
    return {
        "tools": list(get_tool_formats()),
        "reasoning": [NO_REASONING.name, *get_reasoning_formats()],
    }
