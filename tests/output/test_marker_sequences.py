"""Markers in any order, with quotes, brackets and parts of calls between them.

Whatever a model writes, the parser ends with the answer, and the result does not depend on how the
answer is cut into pieces.
"""

from __future__ import annotations

from random import Random

import pytest

from dragoman.formats import find_reasoning, find_tools, get_tool_formats
from dragoman.output.library import OutputParser, collect_markers
from dragoman.output.spec import GAP, ToolFormat
from dragoman.testing.format_checks import fold_spans, parse_pieces

TEXTS = 60  # for each format
LONGEST = 14  # parts of a text
FRAGMENTS = ('"', "'", "{", "[", "\n", "a", "<think>", "</think>")
TOOLS = [{"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}]


def choose_reasoning(tools: ToolFormat) -> str:
    return tools.default_reasoning or (tools.name if tools.name == "harmony" else "think")


def list_parts(tools: ToolFormat) -> list[str]:
    """List the markers of a format, and parts of answers to put between them."""
    markers = collect_markers(tools, find_reasoning(choose_reasoning(tools)))
    example = tools.example
    unclosed_string = example[: example.rfind("1")] + '"'  # the argument in every example is 1
    return [
        *sorted(marker.replace(GAP, " ") for marker in markers),
        *FRAGMENTS,
        example,
        unclosed_string,
    ]


@pytest.mark.parametrize("name", get_tool_formats())
def test_the_parser_ends_and_cuts_change_nothing(name: str) -> None:
    tools, random_source = find_tools(name), Random(name)
    parts = list_parts(tools)
    for _ in range(TEXTS):
        count = random_source.randint(3, LONGEST)
        text = "".join(random_source.choice(parts) for _ in range(count))
        results = [
            fold_spans(
                parse_pieces(OutputParser(name, choose_reasoning(tools), tools=TOOLS), pieces)
            )
            for pieces in ([text], list(text))
        ]
        assert results[0] == results[1], text


def test_reasoning_after_a_string_without_an_end_is_read() -> None:
    """The string holds the rest of the answer back until its end, where calls are looked for."""
    text = '<|tools_prefix|>"<|tools_prefix|><think>a<|tools_prefix|></think>b'
    result = fold_spans(parse_pieces(OutputParser("apertus", "think", tools=TOOLS), [text]))
    assert (result.reasoning, result.calls) == ("a<|tools_prefix|>", [])
    assert result.text.endswith("b")
