"""Damage in one call touches nothing else; `tests/support/damage.py` has the laws."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from dragoman.formats import find_tools, get_tool_formats
from dragoman.output.library import OutputParser
from dragoman.output.spec import TaggedArguments
from dragoman.testing.format_checks import fold_spans, parse_pieces
from tests.support.answers import AnswerWriter
from tests.support.damage import (
    NAMES,
    REASONING,
    TOOLS,
    UNMARKED,
    find_violations,
    make_answer,
)
from tests.support.damage_catalogue import DAMAGES, REPAIRED

ANSWERS = 50  # of each format; `make exam` tries 2,000
FORMATS = list(get_tool_formats())
# Formats whose calls start with a name or a bracket: text that a limit cuts there is text.
WORD_STARTS = UNMARKED | {"functools", "glm4_legacy", "json_bare"}
MARKED = [name for name in FORMATS if find_tools(name).section.close]


@pytest.mark.parametrize("name", FORMATS)
def test_damage_in_one_call_changes_nothing_else(name: str) -> None:
    for seed in range(ANSWERS):
        answer = make_answer(name, Random(f"{name}{seed}"))
        assert find_violations(answer) == [], (seed, answer.damage, answer.text)


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_done(damage: str) -> None:
    """Each one changes calls of several formats; otherwise the laws would say nothing about it."""
    changed = 0
    for name in FORMATS:
        answer = make_answer(name, Random(name), damage)
        changed += answer.damaged != answer.calls[answer.index].text
    assert (changed == 0) if damage == "none" else changed > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in WORD_STARTS])
def test_an_answer_that_the_token_limit_cut_shows_no_half_marker(name: str) -> None:
    """Nor half a word or number, which would be another value."""
    for seed in range(2):
        answer = make_answer(name, Random(seed), "none")
        whole = fold_spans(parse_pieces(answer.make_parser(), [answer.text]))
        text = f"{answer.before}{answer.after}"
        for end in range(len(answer.text)):
            spans = parse_pieces(answer.make_parser(), [answer.text[:end]], truncated=True)
            output = fold_spans(spans)
            shown = re.sub(r"\n|\b(?:t|to|f\w*|function \w*|Action|A\w*)$", "", output.text).strip()
            assert text.replace("\n", "").startswith(shown), answer.text[:end]
            assert REASONING.startswith(output.reasoning)
            for call, whole_call in zip(output.raw_calls, whole.raw_calls, strict=False):
                assert call[0] == whole_call[0]
                assert whole_call[1].startswith(call[1]), answer.text[:end]


CUT_BY_THE_MODEL = {
    "hermes_json": '<tool_call>{"name": "book", "arguments": {"city": "Oslo", "days": ',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.book:0"
    '<|tool_call_argument_begin|>{"city": "Oslo", "days"',
    "glm45": "<tool_call>book\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "<arg_key>days</arg_key>\n<",
    "hy_v3": "<tool_calls><tool_call>book<tool_sep><arg_key>city</arg_key><arg_value>Oslo</arg_v",
    "qwen3_coder": "<tool_call>\n<function=book>\n<parameter=city>\nOslo\n</param",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="book">\n<parameter name="city">Oslo'
    '</parameter>\n<parameter name="days">',
    "gemma4": '<|tool_call>call:book{city:<|"|>Oslo<|"',
}


@pytest.mark.parametrize("name", CUT_BY_THE_MODEL)
def test_an_answer_that_the_model_ends_early_has_no_value_that_was_not_written(name: str) -> None:
    for pieces in ([CUT_BY_THE_MODEL[name]], list(CUT_BY_THE_MODEL[name])):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == [("book", {"city": "Oslo"})]
        assert not output.text


CUT_AFTER_A_MARKER = {
    "in a string": (
        "hermes_json",
        '<tool_call>{"name": "book", "arguments": {"days": 3, "note": "a <tool_call> b',
        '{"days": 3, "note": "a ',
        "",
    ),
    "at the start of a string": (
        "functionary_v31",
        '<function=book>{"days": 3, "note": "<function=b',
        '{"days": 3',
        "",
    ),
    "in a list between tags": (
        "qwen3_coder",
        "<tool_call>\n<function=book>\n<parameter=city>\nOslo\n</parameter>\n<parameter=tags>\n"
        '["a </parameter>',
        '{"city": "Oslo"',
        "",
    ),
    "that ends a call with an unclosed string": (
        "hermes_json",
        '<tool_call>{"name": "book", "arguments": {"note": "a}}</tool_call>\nThat is',
        '{"note": "a}}"}',
        "\nThat is",
    ),
}


@pytest.mark.parametrize("marker", CUT_AFTER_A_MARKER)
def test_an_answer_that_the_token_limit_cut_after_a_marker(marker: str) -> None:
    name, text, arguments, after = CUT_AFTER_A_MARKER[marker]
    for pieces in ([text], list(text)):
        spans = parse_pieces(OutputParser(name, tools=TOOLS), pieces, truncated=True)
        output = fold_spans(spans)
        assert (output.raw_calls, output.text) == ([("book", arguments)], after)


DOUBTLESS = {
    "a doubled brace before other arguments": (
        "hermes_json",
        '<tool_call>{"name": "book", "arguments": {"place": {"label": "Oslo"}}, "days": 3}}'
        "</tool_call>",
    ),
    "a doubled brace in a list": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.book:0"
        '<|tool_call_argument_begin|>{"stays": [{"at": "Oslo"}}], "days": 3}'
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "a list in a list of calls": (
        "json_list_tool_calls_tag",
        '<tool_calls>[[{"name": "book", "arguments": {"days": 3}}]</tool_calls>',
    ),
    "a list of objects before the next call": (
        "json_list_tool_calls_tag",
        '<tool_calls>[{"name": "book", "arguments": {"stays": [{"at": "Oslo"}, '
        '{"name": "book", "arguments": {"days": 3}}]</tool_calls>',
    ),
    "no damage, but an object like a call": (
        "json_list_tool_calls_tag",
        '<tool_calls>[{"name": "book", "arguments": {"stays": [{"at": "Oslo"}, '
        '{"name": "resize", "arguments": {}}]}}]</tool_calls>',
    ),
    "the next call instead of a value": (
        "json_bare",
        '{"name": "book", "arguments": {"days": 3, "place": {"label": "Oslo", "size": \n'
        '{"name": "book", "arguments": {"days": 4}}\n{"name": "book", "arguments": {"days": 5}}',
    ),
    "the next call as the last instead of a value": (
        "json_bare",
        '{"name": "book", "arguments": {"days": 3, "place": \n'
        '{"name": "book", "arguments": {"note": "}]"}}',
    ),
    "the next call instead of an element": (
        "json_bare",
        '{"name": "book", "arguments": {"stays": [\n{"name": "book", "arguments": {"days": 4}}\n',
    ),
    "the next call instead of a key": (
        "json_bare",
        '{"name": "book", "arguments": {"days": 3}}\n{"name": "book", "arguments": {\n'
        '{"name": "book", "arguments": {"days": 4}}\n',
    ),
    "no damage, but a call as a value": (
        "json_bare",
        '{"name": "book", "arguments": {"place": {"name": "book", "arguments": {"days": 4}}}}',
    ),
    "a call as a value, without the last brackets": (
        "json_bare",
        '{"name": "book", "arguments": {"place": {"name": "book", "arguments": {"days": 4}}',
    ),
    "an object in a string with other quotes": (
        "sarashina",
        "<|tool_calls|>[{'name': 'book', 'arguments': "
        '{\'note\': \'{"name": "a", "arguments": {}}\'}}]',
    ),
    "an opening tag instead of a closing one": (
        "minimax_m3",
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="book">]<]minimax[>[<days>3]<]minimax[>['
        '</days>]<]minimax[>[<invoke>]<]minimax[>[<invoke name="book">]<]minimax[>[<tags>'
        "]<]minimax[>[</tags>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
    ),
    "a list opened before the arguments in a list of calls": (
        "json_list_tool_calls_tag",
        '<tool_calls>[{"name": "book", "arguments":[{"days": 3}}, '
        '{"name": "book", "arguments": {"city": "Oslo"}}]</tool_calls>',
    ),
    "arguments closed before the first": (
        "hermes_json",
        '<tool_call>{"name": "book", "arguments": {}"days": 3, "city": "Oslo"}}</tool_call>',
    ),
    "a doubled name and parenthesis": (
        "lfm2",
        "<|tool_call_start|>[book(book(days=3))]<|tool_call_end|>",
    ),
    "a doubled name and parenthesis without markers": ("pythonic", "[book(book(days=3)]"),
    "an end of turn that ends an unclosed list": (
        "hyperclovax_14b",
        ' -> tool/function_call\n[{"name": "book", "arguments": {"days": 3}<|im_end|>',
    ),
}
DOUBTLESS_CALLS: dict[str, list[dict[str, Any]]] = {
    "a doubled brace before other arguments": [{"place": {"label": "Oslo"}, "days": 3}],
    "a doubled brace in a list": [{"stays": [{"at": "Oslo"}], "days": 3}],
    "a list in a list of calls": [{"days": 3}],
    "a list of objects before the next call": [{"stays": [{"at": "Oslo"}]}, {"days": 3}],
    "no damage, but an object like a call": [
        {"stays": [{"at": "Oslo"}, {"name": "resize", "arguments": {}}]}
    ],
    "the next call instead of a value": [
        {"days": 3, "place": {"label": "Oslo"}},
        {"days": 4},
        {"days": 5},
    ],
    "the next call as the last instead of a value": [{"days": 3}, {"note": "}]"}],
    "the next call instead of an element": [{"stays": []}, {"days": 4}],
    "the next call instead of a key": [{"days": 3}, {"days": 4}],
    "no damage, but a call as a value": [{"place": {"name": "book", "arguments": {"days": 4}}}],
    "a call as a value, without the last brackets": [
        {"place": {"name": "book", "arguments": {"days": 4}}}
    ],
    "an object in a string with other quotes": [{"note": '{"name": "a", "arguments": {}}'}],
    "an opening tag instead of a closing one": [{"days": 3}, {"tags": []}],
    "a list opened before the arguments in a list of calls": [{"days": 3}, {"city": "Oslo"}],
    "arguments closed before the first": [{"days": 3, "city": "Oslo"}],
    "a doubled name and parenthesis": [{"days": 3}],
    "a doubled name and parenthesis without markers": [{"days": 3}],
    "an end of turn that ends an unclosed list": [{"days": 3}],
}


@pytest.mark.parametrize("damage", DOUBTLESS)
def test_damage_that_leaves_no_doubt_is_repaired(damage: str) -> None:
    name, text = DOUBTLESS[damage]
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == [("book", arguments) for arguments in DOUBTLESS_CALLS[damage]]


UNDECLARED_AND_DAMAGED = {
    "kimi_k2": (
        "<|tool_call_begin|>functions.bok:0<|tool_call_argument_begin|>"
        '{"days": 98<|tool_call_end|>\n'
        "<|tool_call_begin|>functions.book:1<|tool_call_argument_begin|>"
        '{"days": 3}<|tool_call_end|>'
    ),
    "dots": '<dots_function_call>\n<invoke name="bok">\n<parameter name="city">Oslo</parameter>\n'
    ')\n</invoke>\n<invoke name="book">\n<parameter name="days">3</parameter>\n</invoke>\n'
    "</dots_function_call>",
}


@pytest.mark.parametrize("name", UNDECLARED_AND_DAMAGED)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_damaged_call_of_an_undeclared_tool_is_text_however_it_is_cut(
    name: str, is_first: bool
) -> None:
    text = UNDECLARED_AND_DAMAGED[name]
    if not is_first:
        writer = AnswerWriter(find_tools(name))
        call = writer.write_call("find_hotel", {"days": 1}).text
        text = writer.open_section("") + call + "\n" + text.removeprefix(writer.open_section(""))
    calls = [*[("find_hotel", {"days": 1})][is_first:], ("book", {"days": 3})]
    texts = set()
    for size in (1, 2, 5, 20, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == calls
        texts.add(output.text)
    assert len(texts) == 1
    assert "bok" in texts.pop()


def test_text_in_the_place_of_a_key_is_text_after_the_call() -> None:
    text = (
        "<|tool_call:start|>book\n<|tool_arg:start|>note<|tool _arg:value|>Oslo<|tool_arg_end|>\n"
        "<|tool_call:end|>"
    )
    output = fold_spans(parse_pieces(OutputParser("solar_open2", tools=TOOLS), [text]))
    assert output.calls == [("book", {})]
    assert "Oslo" in output.text


@pytest.mark.parametrize("name", ["hermes_json", "json_bare", "glm45"])
def test_all_calls_at_the_end_of_unclosed_reasoning_count(name: str) -> None:
    writer = AnswerWriter(find_tools(name))
    calls = [writer.write_call(NAMES[n], {"days": n}, n) for n in range(2)]
    text = f"<think>{REASONING}" + writer.separator.join(call.text for call in calls)
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, "think", tools=TOOLS), pieces))
        assert output.calls == [(NAMES[n], {"days": n}) for n in range(2)]
        assert output.reasoning.strip() == REASONING


@pytest.mark.parametrize("name", MARKED)
def test_markers_inside_a_closed_string_are_part_of_it(name: str) -> None:
    tool_format = find_tools(name)
    writer = AnswerWriter(tool_format)
    markers = [*tool_format.section.open[:1], *tool_format.section.close[:1]]
    note = f"Write {' and '.join(markers)} around it".replace("\0", "")
    arguments: list[dict[str, Any]] = [{"note": note, "days": 3}, {"city": "Oslo"}]
    calls = [writer.write_call(NAMES[n], arguments[n], n) for n in range(2)]
    text = writer.separator.join(call.text for call in calls)
    if writer.has_sections:
        text = writer.open_section(calls[0].name) + text + writer.close_section()
    for size in (1, 7, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == list(zip(NAMES[:2], arguments, strict=True))


@pytest.mark.parametrize("gap", [16_000, 16_500, 21_000])
def test_cuts_change_no_answer_whose_string_is_not_closed_for_long(gap: int) -> None:
    text = '<tool_call>{"name": "book", "arguments": {"note": "a</tool_call>' + "x" * gap
    text += '<tool_call>{"name": "book", "arguments": {"days": 3}}</tool_call>'
    outputs = []
    for size in (1, 1000, 4096, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        outputs.append(fold_spans(parse_pieces(OutputParser("hermes_json", tools=TOOLS), pieces)))
    assert outputs.count(outputs[0]) == len(outputs)


KEY_WITHOUT_VALUE = {
    "hermes_json": '<tool_call>\n{"name": "book", "arguments": {"city": , "days": 3}}\n'
    "</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.book:0"
    '<|tool_call_argument_begin|>{"city":, "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "glm45": "<tool_call>book\n<arg_key>city</arg_key>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "lfm2": "<|tool_call_start|>[book(days=3, city=)]<|tool_call_end|>",
    "gemma4": "<|tool_call>call:book{city:,days:3}<tool_call|>",
    # the tag of the value is there, and the next key or the end of the call follows
    "glm45 at the end": "<tool_call>book\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    "<arg_key>city</arg_key>\n<arg_value>\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=book>\n<parameter=city>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>",
    "qwen3_coder at the end": "<tool_call>\n<function=book>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=city>\n</function>\n</tool_call>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="book">\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="city" string="true">\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="book">]<]minimax[>[<city>'
    "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
}


@pytest.mark.parametrize("name", KEY_WITHOUT_VALUE)
def test_a_key_without_a_value_is_left_out(name: str) -> None:
    parser = OutputParser(name.partition(" ")[0], tools=TOOLS)
    output = fold_spans(parse_pieces(parser, [KEY_WITHOUT_VALUE[name]]))
    assert output.calls == [("book", {"days": 3})]


WRONG_CLOSING_TAGS = {
    "qwen3_coder": "<tool_call>\n<function=book>\n<parameter=city>\nOslo\n</param>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>book\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_val>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="book">\n<parameter name="city">Oslo</param>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="book">]<]minimax[>[<city>'
    "Oslo]<]minimax[>[</town>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n"
    "]<]minimax[>[</tool_call>",
    "deepseek_v41": '<｜DSML｜ calls>\n<｜DSML｜ invoke name="book">\n'
    '<｜DSML｜ parameter name="city" string="true">Oslo</ ｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="days" string="false">3'
    "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
}


@pytest.mark.parametrize("name", WRONG_CLOSING_TAGS)
def test_a_wrong_closing_tag_is_no_part_of_a_value(name: str) -> None:
    parser = OutputParser(name, tools=TOOLS)
    output = fold_spans(parse_pieces(parser, [WRONG_CLOSING_TAGS[name]]))
    assert output.calls == [("book", {"city": "Oslo", "days": 3})]


EMPTY_STRINGS = {
    "qwen3_coder": "<tool_call>\n<function=book>\n<parameter=city>\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm45": "<tool_call>book\n<arg_key>city</arg_key>\n<arg_value></arg_value>\n</tool_call>",
    "minimax_m3": ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="book">]<]minimax[>[<city>'
    "]<]minimax[>[</city>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
}


@pytest.mark.parametrize("name", EMPTY_STRINGS)
def test_an_empty_string_that_is_closed_is_a_value(name: str) -> None:
    output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), [EMPTY_STRINGS[name]]))
    assert output.calls == [("book", {"city": ""})]


WITHOUT_TEXT = {
    "the bracket of a list before a marker with a bracket": (
        "openpangu",
        '[unused11][{"name": "book", "arguments": {"days": 3}}[unused12][unused10]',
    ),
    "a token that ends the turn instead of brackets": (
        "mistral",
        '[TOOL_CALLS][{"name": "book", "arguments": {"days": 3}</s>',
    ),
    "a token that ends the turn in the call": (
        "hermes_json",
        '<tool_call>{"name": "book",<|im_end|> "arguments": {"days": 3}<|im_end|>}</tool_call>',
    ),
    "a brace before the marker that ends the arguments": (
        "plamo3",
        "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>"
        "<|plamo:begin_tool_name:plamo|>book<|plamo:end_tool_name:plamo|>"
        "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
        '{"days": 3<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>'
        "<|plamo:end_tool_requests:plamo|>",
    ),
    "three opening markers": (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁call▁begin｜>\n<｜tool▁call▁begin｜>book"
        '<｜tool▁sep｜>{"days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
}


@pytest.mark.parametrize("damage", WITHOUT_TEXT)
def test_markup_of_a_damaged_call_is_no_text(damage: str) -> None:
    name, text = WITHOUT_TEXT[damage]
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert (output.calls, output.text) == ([("book", {"days": 3})], "")


# damage of the arguments alone, after which sibling formats must read the same
SHARED = {
    '{"city": "Os" + "lo", "days": 3}': {"city": "Os"},
    '{"city": "Oslo" | "days": 3}': {"city": "Oslo"},
    '{"city"": "Oslo", "days": 3}': {"city": "Oslo", "days": 3},
    '{"city" "Oslo", "days" 3}': {"city": "Oslo", "days": 3},
    '{"city": "Oslo", "days" 3}': {"city": "Oslo", "days": 3},
    '{"note" "city": "Oslo"}': {"city": "Oslo"},
    '{"days": 3, "note" "city": "Oslo"}': {"days": 3, "city": "Oslo"},
    '{"tags" ["Oslo"]}': {"tags": ["Oslo"]},
    '{"tags": ["Oslo", "Paris"': {"tags": ["Oslo", "Paris"]},
    '{"city": """Oslo""", "days": 3}': {"city": "Oslo", "days": 3},
    "null": {},
}
JSON_FORMATS: tuple[str, ...] = (
    "hermes_json",
    "longcat",
    "cohere_cmd3",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
)
JSON_FORMATS += ("functionary_v31", "mistral", "plamo3", "cwm", "apertus", "solar_open")
JSON_FORMATS += ("llama3_json", "minimax_m1", "granite3", "xlam")


@pytest.mark.parametrize("name", JSON_FORMATS)
@pytest.mark.parametrize("arguments", SHARED)
def test_damaged_arguments_are_read_alike_in_all_formats_of_json(name: str, arguments: str) -> None:
    written = {"city": "Lagos"}
    writer = AnswerWriter(find_tools(name))
    text = writer.write_call("book", written).text
    if writer.has_sections:
        text = writer.open_section("book") + text + writer.close_section()
    text = text.replace('{"city": "Lagos"}', arguments)
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == [("book", SHARED[arguments])], text


@pytest.mark.parametrize("name", ["beam", "harmony"])
def test_a_code_fence_around_the_body_of_an_addressed_call_is_dropped(name: str) -> None:
    call = AnswerWriter(find_tools(name)).write_call("book", {"city": "Oslo"})
    text = f"{call.opening}```json\n{call.body}\n```{call.closing}"
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == [("book", {"city": "Oslo"})]
        assert not output.text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in WORD_STARTS])
def test_a_damaged_call_that_the_token_limit_cut_shows_no_half_marker(name: str) -> None:
    """Its arguments are the beginning of what they are without the limit."""
    random = Random(name)
    for _ in range(3):
        answer = make_answer(name, random, random.choice(sorted(REPAIRED)))
        whole = fold_spans(parse_pieces(answer.make_parser(), [answer.text]))
        text = f"{answer.before}{answer.after}"
        for end in range(1, len(answer.text)):
            spans = parse_pieces(answer.make_parser(), [answer.text[:end]], truncated=True)
            output = fold_spans(spans)
            shown = re.sub(r"\n|\b(?:t|to|f\w*|function \w*|Action|A\w*)$", "", output.text).strip()
            assert text.replace("\n", "").startswith(shown), answer.text[:end]
            assert answer.reasoning.startswith(output.reasoning)
            for call, whole_call in zip(output.raw_calls, whole.raw_calls, strict=False):
                assert call[0] == whole_call[0]
                assert whole_call[1].startswith(call[1]), (answer.damage, answer.text[:end])


def test_a_quote_inside_a_string_of_python_opens_no_string_of_json() -> None:
    text = (
        "<tool_call>book<arg_key>tags</arg_key><arg_value>['12\" wide']</arg_value></tool_call>"
        '\nIt is 12"'
    )
    output = fold_spans(parse_pieces(OutputParser("glm47", tools=TOOLS), [text]))
    assert output.calls == [("book", {"tags": ['12" wide']})]
    assert output.text == '\nIt is 12"'


TAGGED = [
    name
    for name, entry in get_tool_formats().items()
    if isinstance(AnswerWriter(entry).body, TaggedArguments)
]


def write_tagged_answer(name: str, between: str = "") -> str:
    """Write two calls, the first with a text between its arguments."""
    writer = AnswerWriter(find_tools(name))
    body = writer.body
    assert isinstance(body, TaggedArguments)
    calls = [writer.write_call("book", {"city": "Oslo", "days": 3})]
    calls.append(writer.write_call("find_hotel", {"city": "Paris"}, 1))
    close = body.value.close[0].replace("\0", "")
    texts = [calls[0].text.replace(close, close + between, 1), calls[1].text]
    text = writer.separator.join(texts)
    return (
        writer.open_section("book") + text + writer.close_section() if writer.has_sections else text
    )


BETWEEN = {"\nOK then.\n": "OK then.", "<!-- a < b -->": "<!-- a < b -->", ",": "", " ;\n,": ""}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("name", TAGGED)
def test_text_between_arguments_in_tags_is_text_after_the_call(name: str, between: str) -> None:
    text = write_tagged_answer(name, between)
    for size in (1, 7, len(text)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        spans = parse_pieces(OutputParser(name, tools=TOOLS), pieces)
        output = fold_spans(spans)
        assert output.calls == [
            ("book", {"city": "Oslo", "days": 3}),
            ("find_hotel", {"city": "Paris"}),
        ]
        assert output.text.strip() == BETWEEN[between]
        # clients may have closed a call when text follows it
        order = [span.call for span in spans if span.channel != "text"]
        texts = [number for number, span in enumerate(spans) if span.channel == "text"]
        assert order == sorted(order)
        assert all(
            spans[number - 1].channel != "tool_args" or spans[number - 1].text.endswith("}")
            for number in texts
        )


@pytest.mark.parametrize("name", TAGGED)
def test_text_between_arguments_is_not_lost_if_the_answer_ends(name: str) -> None:
    text = write_tagged_answer(name, "\nOK then.\n")
    text = text[: text.index("days") + 4]
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert output.calls == [("book", {"city": "Oslo"})]
        assert output.text.startswith("OK then.")


@pytest.mark.parametrize("name", TAGGED)
def test_arguments_in_tags_may_be_one_object(name: str) -> None:
    writer = AnswerWriter(find_tools(name))
    if find_tools(name).header is not None and not writer.has_sections:
        return  # the header has the name
    empty = writer.write_call("book", {})
    text = empty.opening + empty.body.rstrip("\n") + '\n{"city": "Oslo"}\n' + empty.closing
    if writer.has_sections:
        text = writer.open_section("book") + text + writer.close_section()
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert (output.calls, output.text.strip()) == ([("book", {"city": "Oslo"})], "")


SPELLINGS_OF_A_TAG = {
    "self-closing": ("minimax_m2", '<minimax:tool_call><invoke name="book"/></minimax:tool_call>'),
    "self-closing with attributes": (
        "minimax_m2",
        '<minimax:tool_call><invoke name="book" id="1" /></minimax:tool_call>',
    ),
    "self-closing with space": ("minicpm5", '<function name="book" />'),
    "self-closing before a call": (
        "qwen3_coder",
        "<tool_call><function=book/></tool_call><tool_call></tool_call>",
    ),
    "name in quotes": ("glm45", '<tool_call>"book"\n</tool_call>'),
    "object on the line of the name": ("glm47", "<tool_call>book{}</tool_call>"),
}


@pytest.mark.parametrize("attribute", ['type="string"', "type='string' id='1'"])
def test_attributes_of_a_tag_are_ignored(attribute: str) -> None:
    text = (
        '<minimax:tool_call>\n<invoke name="book">\n'
        f'<parameter name="city" {attribute}>Oslo</parameter>\n</invoke>\n</minimax:tool_call>'
    )
    output = fold_spans(parse_pieces(OutputParser("minimax_m2", tools=TOOLS), [text]))
    assert (output.calls, output.text) == ([("book", {"city": "Oslo"})], "")


@pytest.mark.parametrize("spelling", SPELLINGS_OF_A_TAG)
def test_spellings_of_a_tag(spelling: str) -> None:
    name, text = SPELLINGS_OF_A_TAG[spelling]
    for pieces in ([text], list(text)):
        output = fold_spans(parse_pieces(OutputParser(name, tools=TOOLS), pieces))
        assert (output.calls, output.text) == ([("book", {})], "")
