"""Difficult texts: nothing raises, no text is lost or invented, and cuts make no difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.output.arguments.cast import cast, to_json
from dragoman.output.arguments.schemas.parameter_types import read_parameter_schema
from dragoman.output.library import OutputParser, ParserPolicy
from dragoman.testing.format_checks import ParsedOutput, check_format, fold_spans, parse_pieces

TOOLS = [
    {
        "name": "weather",
        "parameters": {
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "note": {"type": ["string", "null"]},
            }
        },
    },
    {"name": "f"},
]
HERMES = '<tool_call>{"name": "f", "arguments": %s}</tool_call>'
ELEMENTS = ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">%s]<]minimax[>[</invoke>'


def make_elements(text: str) -> str:
    marked = text.replace("<", "]<]minimax[>[<")
    return ELEMENTS % marked + "]<]minimax[>[</tool_call>"


def parse(text: str, *names: str | None, tools: Any = None, **options: Any) -> ParsedOutput:
    return check_format(lambda: OutputParser(*names, tools=tools, **options), text, random_cuts=2)


@pytest.mark.parametrize("space", ["\u00a0", "\x0b", "\u2028", " "])
def test_odd_white_space_for_a_value(space: str) -> None:
    text = f"<|tool_call>call:f{{a:{space}"
    result = parse(text, "gemma4")
    assert (result.text, result.calls) == (text, [])


@pytest.mark.parametrize("name", ["hermes_json", "mistral", "qwen3_coder", "llama3_json"])
def test_a_name_may_be_nested_one_level(name: str) -> None:
    start = {"mistral": "[TOOL_CALLS]", "llama3_json": ""}.get(name, "<tool_call>")
    text = start + '{"name":' * 3000
    assert fold_spans(parse_pieces(OutputParser(name), [text])).text == text


@pytest.mark.parametrize("size", [90, 120, 250, 257, 400, 3000])
def test_cuts_do_not_change_how_long_names_are_parsed(size: int) -> None:
    long = "k" * size
    for name, text in (
        ("minimax_m3", make_elements(f"<{long}>1")),
        ("qwen3_coder", f"<tool_call><function={long}><parameter=a>1</parameter></function>"),
        ("qwen3_coder", f"<tool_call><function=f><parameter={long}>1</parameter></function>"),
        ("harmony", f"<|channel|>commentary to=functions.f {long}<|message|>{{}}<|call|>"),
        ("hermes_json", HERMES % f'{{"a": 1, "{long}": 2}}'),
        ("hermes_json", HERMES % f'{{"a": 1, "{long}"   :   2}}'),
        ("inkling", f"<|message_model|>{long}<|content_text|>hi<|end_message|>"),
    ):
        whole = fold_spans(parse_pieces(OutputParser(name), [text]))
        assert fold_spans(parse_pieces(OutputParser(name), text)) == whole
        assert all(isinstance(arguments, dict) for _, arguments in whole.calls)


def test_long_custom_markers_work() -> None:
    marker = "<" + "x" * 500 + ">"
    parser = OutputParser(policy=ParserPolicy(hidden=(marker,)))
    assert fold_spans(parse_pieces(parser, f"a{marker}b")).text == "ab"
    tools = [{"name": "f", "parameters": {"properties": {"x" * 500: {"type": "string"}}}}]
    OutputParser("lfm2", tools=tools).feed("<|tool_call_start|>[f(b=Rom)]")


def test_brackets_in_unquoted_words() -> None:
    text = "<|tool_call_start|>[weather(city=Rom (Lazio) centro, days=2)]<|tool_call_end|>"
    assert parse(text, "lfm2", tools=TOOLS).calls == [
        ("weather", {"city": "Rom (Lazio) centro", "days": 2})
    ]


def test_a_partial_marker_is_text() -> None:
    text = '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>jsonx type="a"<|sep|>'
    assert parse(text + '{"a":1}', "kimi_k3").calls == []


def test_markers_with_a_common_prefix() -> None:
    text = "<think>\nOne.\n</think>\n<answer>\n\nThree.\n</answer>"
    assert parse(text, "minicpm5", "hunyuan_think_answer").text == "\nThree."


def test_no_argument_is_invented() -> None:
    text = "<|tool_call_start|>[weather(city=Rom)</think>hi"
    result = parse(text, "lfm2", "think", inside=True, tools=TOOLS)
    assert (result.reasoning, result.text) == ("<|tool_call_start|>[weather(city=Rom)", "hi")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("\"{'a': 1}\"", {"a": 1}),
        ('"{\\"a\\": [1,]}"', {"a": [1]}),
        ("{'a': {1, 2}}", {"a": [1, 2]}),
        ('{"a": 1\u0663}', {"a": "1\u0663"}),
        ('{"a": +1e999}', {"a": "+1e999"}),
        ('{"a": [NaN, _1, 5_, 0x10]}', {"a": ["NaN", "_1", "5_", 16]}),
        ('{"a": ' + "9" * 5000 + "}", {"a": "9" * 5000}),
        ('{"a": "\\ud800", "b": "\\U0000d800"}', {"a": "\ud800", "b": "\ud800"}),
        ('"{\\"a\\": \\"\\\\ud800\\"}"', {"a": "\ud800"}),
    ],
)
def test_arguments_that_only_look_like_json(arguments: str, expected: dict[str, Any]) -> None:
    result = fold_spans(parse_pieces(OutputParser("hermes_json"), [HERMES % arguments]))
    assert result.calls == [("f", expected)]
    result.raw_calls[0][1].encode()  # a lone surrogate cannot be encoded


@pytest.mark.parametrize("arguments", ['{"city"}', '{"cityern", "days": 2}', "{1}", "{a b}"])
def test_arguments_that_are_not_an_object_are_not_a_call(arguments: str) -> None:
    assert parse(HERMES % arguments, "hermes_json").text == HERMES % arguments


def test_names_with_lone_surrogates_are_not_calls() -> None:
    assert not parse(
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "hermes_json"
    ).calls


@pytest.mark.parametrize(
    ("name", "text", "lost"),
    [
        (
            "hermes_json",
            HERMES % '{"a":1, "a whole sentence nobody sees" ; more}',
            "a whole sentence",
        ),
        (
            "qwen3_coder",
            "<tool_call><function=f><parameter=a>1</parameter><parameter=" + "lost" * 99,
            "lost" * 99,
        ),
        ("minimax_m3", make_elements("<a>TEXT<item>1</item>MORE</a>"), "MORE"),
        (
            "minicpm5",
            '<function name="f"><param name="a"><![CDATA[x]]>MORE</param></function>',
            "MORE",
        ),
        (
            "minicpm5",
            '<function name="f"><param name="a"><![CDATA[x]]]]><![CDATA[>y]]></param></function>',
            ">y",
        ),
        (
            "minicpm5",
            '<function name="f"><param name="a"><![CDATA[x]]><param name="b">1</param></function>',
            '"b": "1"',
        ),
        (
            "inkling",
            "<|message_model|>" + "These are words. " * 10 + "<|content_text|>hi",
            "These are words.",
        ),
        ("cohere_cmd3", "</co: some more words > and more", "some more words"),
        ("lfm2", "<|tool_call_start|>[weather(days=1, city=Rom in the spri", "Rom in the spri"),
        ("pythonic", '[weather(city="Rom", days="3 or maybe four', "3 or maybe four"),
        (
            "functiongemma",
            "<start_function_call>call:weather{days:<escape>3 or maybe 4",
            "3 or maybe 4",
        ),
    ],
)
def test_no_text_is_lost(name: str, text: str, lost: str) -> None:
    result = parse(text, name, tools=TOOLS)
    assert lost in result.text + "".join(arguments for _, arguments in result.raw_calls)


def test_the_token_limit_leaves_arguments_incomplete() -> None:
    for name, text in (("pythonic", "[f(a=1, b"), ("hermes_json", HERMES[:44] % '{"a": 1, "b')):
        result = fold_spans(parse_pieces(OutputParser(name), text, truncated=True))
        assert result.raw_calls == [("f", '{"a": 1')]


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("12345678901234567890.0", {"integer"}, "12345678901234567890"),
        ("1e5", {"number"}, "1e5"),
        ("-0", {"integer"}, "-0"),
        ("007", {"integer"}, "7"),
        ("02134", {"string", "integer"}, '"02134"'),
        ("2134", {"string", "integer"}, "2134"),
        ("", {"string", "null"}, '""'),
        ("None", {"string", "null"}, "null"),
        ("{'a': None}", {"object"}, '{"a": null}'),
        ("[NaN]", {"array"}, '["NaN"]'),
        ("{bad json", {"object"}, '"{bad json"'),
    ],
)
def test_values_are_cast_to_the_types_of_the_schema(
    text: str, types: set[str], expected: str
) -> None:
    assert cast(text, frozenset(types)) == expected


def test_parsing_is_deterministic() -> None:
    assert to_json("{'b', 'a', 'c'}") == '["b", "a", "c"]'
    assert to_json(r"{'a': '\d'}") == r'{"a": "\\d"}'
    assert to_json('f"{1}"') is None


def test_recursive_schemas_are_walked_once() -> None:
    choices = [{"$ref": "#/$defs/A"}] * 100
    root = {"$defs": {"A": {"anyOf": choices}}, "properties": {"a": {"anyOf": choices}}}
    assert read_parameter_schema(root).get_member("a").types == frozenset()
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(20):
        nested = {"anyOf": [nested] * 20}
    assert read_parameter_schema({"properties": {"a": nested}}).get_member("a").types == {"string"}


DEFINED = {"a b": {"type": "integer"}, "a/b": {"type": "boolean"}, "a~b": {"type": "null"}}
EITHER = {"anyOf": [{"type": "string"}, {"type": "integer"}]}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"$ref": "#"}, "object"),
        ({"$ref": "#/$defs/a%20b"}, "integer"),
        ({"$ref": "#/$defs/a~1b"}, "boolean"),
        ({"$ref": "#/$defs/a~0b"}, "null"),
        ({"$ref": "#/oneOf/0/items"}, "number"),
        ({"$ref": "#/oneOf/7"}, ""),
        ({"$ref": "http://x"}, ""),
        ({"$ref": "#/$defs/a%20b", "type": ["integer", "null"]}, "integer"),
        ({"enum": [1, 2], "allOf": [{"title": "x"}]}, "integer"),
        ({"enum": [1, "a"], "type": "string"}, "string"),
        ({"enum": [1.0, 2], "type": "integer"}, "integer"),
        ({"type": ["string", "integer"], "allOf": [{"type": "string"}]}, "string"),
        ({"type": "number", "anyOf": [{"type": "integer"}, {"type": "string"}]}, "integer"),
        ({"allOf": [EITHER, {"type": ["integer", "null"]}]}, "integer"),
        ({"anyOf": [{"type": "integer"}, {}]}, ""),
        ({"anyOf": [{"type": "integer"}, False]}, "integer"),
        ({"anyOf": [{"allOf": [{"type": "string"}, {"type": "null"}]}, {"const": 1}]}, "integer"),
        ({"minimum": 3}, "number"),
        ({"minimum": 3, "enum": ["a"]}, "string"),
        ({"minimum": 3, "allOf": [{"minLength": 3}]}, "number string"),
        ({"anyOf": [{"minItems": 1}, {"type": "null"}]}, "array null"),
        ({"required": True}, ""),
        ({"type": [], "$ref": 7, "allOf": 7, "anyOf": {}, "enum": 7}, ""),
    ],
    ids=repr,
)
def test_types_of_a_parameter(schema: dict[str, Any], types: str) -> None:
    root: dict[str, Any] = {"type": "object", "properties": {"a": schema}, "$defs": DEFINED}
    root["oneOf"] = [{"items": {"type": "number"}}]
    assert read_parameter_schema(root).get_member("a").types == set(types.split())


def make_properties(**members: Any) -> dict[str, Any]:
    return {"properties": members}


@pytest.mark.parametrize(
    ("root", "types"),
    [
        (
            {"anyOf": [make_properties(a={"type": "string"}), make_properties(a={"const": 1})]},
            "integer string",
        ),
        ({"anyOf": [make_properties(a={"const": 1}), make_properties(b={"const": 1})]}, "integer"),
        ({"anyOf": [make_properties(a={"const": 1}), make_properties(a={})]}, "integer"),
        (
            {"allOf": [make_properties(a={"type": "string"}), make_properties(a={"maxLength": 5})]},
            "string",
        ),
        ({"allOf": [make_properties(a=EITHER), make_properties(a={"type": "integer"})]}, "integer"),
        (
            make_properties(a=EITHER) | {"anyOf": [make_properties(a={"type": "string"}), {}]},
            "string",
        ),
        ({"additionalProperties": {"type": "integer"}}, "integer"),
        (make_properties(a={}) | {"additionalProperties": {"type": "integer"}}, ""),
        (
            {"patternProperties": {"^b": {"const": 1}}, "additionalProperties": EITHER},
            "integer string",
        ),
        ({"anyOf": [{"additionalProperties": False}, make_properties(a={"const": 1})]}, "integer"),
    ],
    ids=repr,
)
def test_types_of_a_parameter_in_combined_schemas(root: Any, types: str) -> None:
    assert read_parameter_schema(root).get_member("a").types == set(types.split())


def test_schema_walks_are_bounded() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(5000):
        deep = {"allOf": [deep], "properties": {"a": {"type": "string"}}}
    schema = read_parameter_schema({"properties": {"a": deep}}).get_member("a")
    assert schema.get_member("a").types == {"string"}
    wide = {
        "anyOf": [make_properties(**{f"a{number}": {"const": number}}) for number in range(5000)]
    }
    assert len(read_parameter_schema(wide).list_names()) < 5000
    assert read_parameter_schema(wide).get_member("a9").types == {"integer"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Place"},
        {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
        {"allOf": [{"$ref": "#/$defs/Place"}, {"minProperties": 1}]},
    ],
)
def test_nested_schemas_are_followed(schema: dict[str, Any]) -> None:
    place = {"type": "object", "properties": {"zip": {"type": "string"}}}
    parameters = {"$defs": {"Place": place}, "properties": {"at": schema}}
    text = make_elements("<at><zip>7</zip></at>")
    result = parse(text, "minimax_m3", tools=[{"name": "f", "parameters": parameters}])
    assert result.calls == [("f", {"at": {"zip": "7"}})]


@pytest.mark.parametrize(
    "parameters", [None, True, [], "x", {"properties": [1]}, {"properties": {"a": 5}}]
)
def test_no_schema_raises(parameters: Any) -> None:
    tools = [{"name": "f", "parameters": parameters}]
    assert parse(HERMES % '{"a": 1}', "hermes_json", tools=tools).calls == [("f", {"a": 1})]


def test_an_invalid_tool_declaration_is_rejected() -> None:
    with pytest.raises(ValueError, match="name and parameters"):
        OutputParser("hermes_json", tools=[{"function": None}])


@pytest.mark.slow
def test_consecutive_drafts_are_parsed_together() -> None:
    """Calls quoted in reasoning are parsed the same as a whole and in pieces."""
    text = "<think>" + (HERMES % "{}" + " or ") * 8 + "</think>none"
    result = parse(text, "hermes_json", "think")
    assert (result.text, result.calls) == ("none", [])
    assert json.dumps(result.reasoning).count("tool_call>") == 16
