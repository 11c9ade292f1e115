"""Calls of tools that are not declared: the name shows nothing, so more must show a call."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from dragoman.formats import find_tools, get_tool_formats
from dragoman.output.calls import MAX_HELD
from dragoman.output.library import OutputParser, ParserPolicy
from dragoman.output.spec import JsonObjects, MarkerPair, NamedObject, PythonCalls, ToolFormat
from dragoman.testing.format_checks import ParsedOutput, fold_spans, parse_pieces
from tests.support.answers import AnswerWriter

TOOLS = [{"type": "function", "function": {"name": "weather"}}]
OTHERS = [{"type": "function", "function": {"name": "time"}}]
CITY = {"city": "Oslo"}
AFTER = "\nIt is cold."


def is_ended(entry: ToolFormat) -> bool:
    """Whether calls have a closing marker, and arguments in an object or in Python."""
    bodies = JsonObjects | NamedObject | PythonCalls
    has_close = bool(entry.call.close or entry.section.close) and entry.header is None
    return has_close and isinstance(AnswerWriter(entry).body, bodies)


FORMATS = [name for name, entry in get_tool_formats().items() if is_ended(entry)]
# and those in which no bracket shows where a call ends
WITHOUT_BRACKETS = [
    name
    for name in FORMATS
    if not isinstance(find_tools(name).bodies[0], PythonCalls)
    and "[{" not in "".join(find_tools(name).example.split())
]


def write_answer(name: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Write a call of `weather` in its section, and what closes both."""
    writer = AnswerWriter(find_tools(name))
    call = writer.write_call("weather", arguments)
    if not writer.has_sections:
        return call.opening + call.body, call.closing
    return (
        writer.open_section("weather") + call.opening + call.body,
        call.closing + writer.close_section(),
    )


def parse(name: str, text: str, tools: list[dict[str, Any]] | None = None) -> ParsedOutput:
    """Parse an answer whole and in pieces; `undeclared` tools count."""
    policy = ParserPolicy(undeclared="accept")
    outputs = [
        fold_spans(parse_pieces(OutputParser(name, tools=tools, policy=policy), pieces))
        for pieces in ([text], list(text))
    ]
    assert outputs[0] == outputs[1]
    return outputs[0]


def break_string(text: str) -> str:
    """Remove what closes the string `Oslo`."""
    start = text.index("Oslo")
    opening = next(mark for mark in ('<|"|>', "<escape>", '"', "'") if text[:start].endswith(mark))
    assert text[start + 4 :].startswith(opening)
    return text[: start + 4] + text[start + 4 + len(opening) :]


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_without_arguments_counts_if_it_is_closed_or_ends_the_answer(name: str) -> None:
    call, closing = write_answer(name, {})
    for text in (call + closing, call):
        assert parse(name, text).calls == [("weather", {})], text
    closed = parse(name, call + closing + AFTER)
    assert (closed.calls, closed.text.strip()) == ([("weather", {})], AFTER.strip())


def test_a_closing_marker_may_be_a_word() -> None:
    words = MarkerPair(open=("@call ",), close=("@end",))
    entry = ToolFormat(name="words", models="", example="", section=words, bodies=(JsonObjects(),))
    text = '@call {"name": "weather", "arguments": {}} @end@call {"name": "weather"}\n@en'
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(entry), pieces))
        assert (output.calls, output.text) == ([("weather", {})] * 2, "")


@pytest.mark.parametrize("tools", [None, OTHERS])
@pytest.mark.parametrize("name", WITHOUT_BRACKETS)
def test_a_call_without_arguments_is_text_if_text_follows_it(name: str, tools: Any) -> None:
    text = write_answer(name, {})[0] + AFTER
    output = parse(name, text, tools)
    assert (output.calls, output.text) == ([], text)


@pytest.mark.parametrize("name", WITHOUT_BRACKETS)
def test_a_declared_name_shows_a_call_that_text_follows(name: str) -> None:
    output = parse(name, write_answer(name, {})[0] + AFTER, TOOLS)
    assert (output.calls, output.text.strip()) == ([("weather", {})], AFTER.strip())


@pytest.mark.parametrize("name", WITHOUT_BRACKETS)
def test_a_call_that_became_text_changes_no_other_call(name: str) -> None:
    text = write_answer(name, {})[0] + AFTER
    output = parse(name, text + "".join(write_answer(name, CITY)))
    assert (output.calls, output.text) == ([("weather", CITY)], text)


@pytest.mark.parametrize("name", FORMATS)
def test_a_first_string_without_an_end_makes_a_call_text(name: str) -> None:
    """Only a marker that ends the call does so; an answer may end inside a string."""
    call, closing = write_answer(name, CITY)
    text = break_string(call)
    output = parse(name, text + closing + AFTER)
    assert not output.calls
    assert output.text.startswith(text)
    assert output.text.endswith(AFTER)
    assert [call[0] for call in parse(name, text + closing, TOOLS).calls] == ["weather"]
    assert parse(name, text[: text.index("Oslo") + 4]).calls == [("weather", CITY)]


@pytest.mark.parametrize("name", ["json_bare", "llama3_json", "xlam", "pythonic"])
def test_a_first_string_without_an_end_is_text_where_no_marker_announces_a_call(name: str) -> None:
    call = write_answer(name, CITY)[0]
    call = call[min(call.find(char) % len(call) for char in "[{") :]
    text = break_string(call)
    output = parse(name, text)
    assert (output.calls, output.text) == ([], text)
    assert [tool for tool, _ in parse(name, text, TOOLS).calls] == ["weather"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_argument_shows_a_call(name: str) -> None:
    call, closing = write_answer(name, {"days": 3, **CITY})
    [(tool, arguments)] = parse(name, break_string(call) + closing).calls
    assert (tool, arguments["days"]) == ("weather", 3)


@pytest.mark.parametrize("name", FORMATS)
def test_a_long_string_shows_a_call(name: str) -> None:
    call, closing = write_answer(name, CITY)
    long = break_string(call).replace("Oslo", "Oslo" * MAX_HELD)
    assert [call[0] for call in parse(name, long + closing).calls] == ["weather"]


@pytest.mark.parametrize(
    ("arguments", "is_held"),
    [
        ('{"city": "Os', True),
        ('{"place": {"city": "Os', True),
        ('{"city": "Oslo", "note": "Co', False),
        ('{"cities": ["Oslo", "Ber', False),
        ('{"days": 3,', False),
    ],
)
def test_only_a_first_string_is_held_back(arguments: str, is_held: bool) -> None:
    text = '<tool_call>{"name": "weather", "arguments": ' + arguments
    declared = fold_spans(OutputParser("hermes_json", tools=TOOLS).feed(text))
    unknown = fold_spans(OutputParser("hermes_json").feed(text))
    assert unknown.raw_calls == ([] if is_held else declared.raw_calls)
    assert [name for name, _ in declared.raw_calls] == ["weather"]


def test_a_first_string_that_the_token_limit_cut_is_sent() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "Os'
    output = fold_spans(parse_pieces(OutputParser("hermes_json"), [text], truncated=True))
    assert output.raw_calls == [("weather", '{"city": "Os')]


@pytest.mark.parametrize("name", get_tool_formats())
def test_a_parser_is_freed_when_it_ends(name: str) -> None:
    """Also one whose answer calls an unknown tool, or is cut short."""
    call, closing = write_answer(name, CITY)
    for end in (OutputParser.close, OutputParser.release):
        for tools in (TOOLS, OTHERS, None):
            parser = OutputParser(name, tools=tools)
            for piece in (call, closing):
                parser.feed(piece)
            end(parser)
            freed = weakref.ref(parser)
            del parser
            assert freed() is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "glm47",
            "\n<tool_call>weather\n<arg_key>city</arg_key><arg_value></arg_value>"
            "<tool_call> ok\n<tool_call>weathe",
        ),
        (
            "kimi_k2",
            "\n<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
            '<|tool_call_argument_begin|>{"q": "x"}<|tool_call_begin|>functions.forecast:1'
            '<|tool_call_argument_begin|>{"q": "x"}<|tool_calls_section_end|>\nIt is cold.',
        ),
        (
            "kimi_k2",
            "\n<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
            '<|tool_call_argument_begin|>{"q": "x"}<|tool_call_begin|>functil_call_end|>{'
            "<|tool_calls_section_end|>\nIt is cold.",
        ),
        (
            "functools",
            '\nfunctools[{"name": "forecast", "arguments": {"q": "x\nIt is cold. '
            'functools[{"name": "weather", "arguments": {}}]\nIt is cold.',
        ),
    ],
)
def test_an_unknown_call_next_to_a_known_one_is_read_alike_however_it_is_cut(
    name: str, text: str
) -> None:
    for truncated in (False, True):
        outputs = []
        for cut in range(len(text) + 1):
            parser = OutputParser(name, tools=TOOLS)
            spans = [*parser.feed(text[:cut]), *parser.feed(text[cut:]), *parser.close(truncated)]
            outputs.append(fold_spans(spans))
        assert outputs == outputs[:1] * len(outputs)
        assert outputs[0].calls
