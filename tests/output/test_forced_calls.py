"""Answers that must be calls never have markup as text, wherever the token limit cuts them."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.formats import find_reasoning, get_tool_formats
from dragoman.output.library import OutputParser, ParserPolicy
from dragoman.testing.format_checks import ParsedOutput, fold_spans
from tests.support.answers import AnswerWriter

TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    }
    for name in ("weather", "forecast")
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"city": "Paris", "days": 3}),
    ("forecast", {"city": "Rome <b>"}),
]
ONLY_CALLS = ParserPolicy(only_calls=True)


def write_answer(name: str) -> str:
    """Write an answer of two calls as a model of this format writes them."""
    writer = AnswerWriter(get_tool_formats()[name])
    calls = [writer.write_call(*call, number) for number, call in enumerate(CALLS)]
    text = writer.separator.join(call.text for call in calls)
    if not writer.has_sections:
        return text
    return writer.open_section(CALLS[0][0]) + text + writer.close_section()


def parse(name: str, text: str, *, truncated: bool, policy: ParserPolicy) -> ParsedOutput:
    reasoning = get_tool_formats()[name].default_reasoning or "none"
    parser = OutputParser(name, reasoning, tools=TOOLS, policy=policy)
    return fold_spans([*parser.feed(text), *parser.close(truncated=truncated)])


@pytest.mark.parametrize("name", list(get_tool_formats()))
def test_a_cut_answer_has_no_text(name: str) -> None:
    tool_format = get_tool_formats()[name]
    for answer in (write_answer(name), tool_format.example):
        calls = parse(name, answer, truncated=False, policy=ONLY_CALLS).raw_calls
        for end in range(len(answer) + 1):
            cut = parse(name, answer[:end], truncated=True, policy=ONLY_CALLS)
            assert cut.text == "", answer[:end]
            for (called, arguments), (whole, complete) in zip(cut.raw_calls, calls, strict=False):
                assert called == whole
                assert complete.startswith(arguments), answer[:end]


@pytest.mark.parametrize("name", list(get_tool_formats()))
def test_reasoning_before_the_calls_stays(name: str) -> None:
    tool_format = get_tool_formats()[name]
    reasoning = find_reasoning(tool_format.default_reasoning or "think")
    if not reasoning.open or reasoning.channels or reasoning.header is not None:
        pytest.skip("a header decides what is reasoning")
    answer = f"{reasoning.open[0]}So be it.{reasoning.close[0]}{tool_format.example}"
    for end in range(len(answer) + 1):
        parser = OutputParser(name, reasoning.name, policy=ONLY_CALLS)
        cut = fold_spans([*parser.feed(answer[:end]), *parser.close(truncated=True)])
        assert cut.text == "" or reasoning.keeps_markers
        assert "So be it.".startswith(cut.reasoning.strip())


def test_reasoning_that_keeps_its_markers_is_text_and_calls_are_not() -> None:
    answer = "<think>So be it.</think>" + get_tool_formats()["minimax_m2"].example
    kept = "<think>So be it.</think>"
    for end in range(len(answer) + 1):
        parser = OutputParser("minimax_m2", "think_append", policy=ONLY_CALLS)
        cut = fold_spans([*parser.feed(answer[:end]), *parser.close(truncated=True)])
        assert kept.startswith(cut.text), cut.text


def test_text_of_an_answer_that_ended_by_itself_is_not_lost() -> None:
    """An engine may not honour the grammar that allows nothing but calls."""
    example = get_tool_formats()["hermes_json"].example
    output = parse(
        "hermes_json",
        f"I refuse. {example}",
        truncated=False,
        policy=ParserPolicy(only_calls=True, undeclared="accept"),
    )
    assert (output.text.strip(), len(output.raw_calls)) == ("I refuse.", 1)
