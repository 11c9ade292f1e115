"""Constrained content, alone and combined with tools and reasoning, in one grammar.

An answer is reasoning, then constrained content or a call of a declared tool, and nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple

import pytest

from dragoman.errors import BadRequest
from dragoman.formats import get_tool_formats
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint
from tests.support.grammars import FormatPair, compile_spec, make_object

pytestmark = pytest.mark.slow

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def make_constraint(schema: Any = None, strict: bool | None = None) -> Constraint:
    return Constraint(kind="json", value=schema, strict=strict, param="response_format")


def check_matches(source: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not match_grammar(source, text)[0]] == []
    assert [text for text in wrong if match_grammar(source, text)[0]] == []


# reasoning, tools and a constraint at once


class WrittenFormat(NamedTuple):
    """How a model writes reasoning, content and calls."""

    reasoning: str
    tool_format: str
    opening: str
    closing: str
    content: str  # a template for what surrounds it
    call: Callable[[str, str], str]
    quotation: str  # text that its reasoning may contain


FORMATS = [
    WrittenFormat(
        "think",
        "hermes_json",
        "<think>",
        "</think>\n\n",
        "{}",
        lambda name, arguments: (
            f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        ),
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call> or {"n": ',
    ),
    WrittenFormat(
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>{}<|return|>",
        lambda name, arguments: (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            f"{arguments}<|call|>"
        ),
        'commentary to=functions.g {"a": true} or {"n": ',
    ),
    WrittenFormat(
        "mistral_think",
        "mistral",
        "[THINK]",
        "[/THINK]",
        "{}",
        lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{arguments}",
        '[TOOL_CALLS]g[ARGS]{"a": true} or {"n": ',
    ),
    WrittenFormat(
        "gemma4_channel",
        "gemma4",
        "<|channel>thought\n",
        "<channel|>",
        "{}",
        lambda name, arguments: "<|tool_call>call:{}{}<tool_call|>".format(
            name, arguments.replace('"', "")
        ),
        '<|tool_call>call:g{a:true}<tool_call|> or {"n": ',
    ),
]
TOOLS = {"f": make_object("a", a=NUMBER), "h": make_object()}
CONTENT = make_object("n", n=NUMBER, s=TEXT)


@pytest.mark.parametrize("written", FORMATS, ids=lambda written: written.tool_format)
@pytest.mark.parametrize("start", ["open", "inside", "at once"])
def test_reasoning_then_content_or_a_call(written: WrittenFormat, start: str) -> None:
    source = FormatPair(written.tool_format, TOOLS, written.reasoning).compile(
        constraint=make_constraint(CONTENT), starts_in_reasoning=start == "inside"
    )
    rest = ["I think.\nSo.", "", written.quotation]
    before = [f"{written.opening}{text}{written.closing}" for text in rest]
    if start == "inside":
        before = [f"{text}{written.closing}" for text in rest]
    elif start == "at once":
        before = [""]
    content, call = written.content.format, written.call
    right = [content('{"n": 1}'), content('{"n": 1, "s": "{\\"a\\": 2}"}'), call("f", '{"a": 1}')]
    right += [content('{"s": "", "n": 1}'), call("h", "{}")]
    wrong = [content("Hello."), "Hello.", "", content("{}"), content('{"n": "1"}'), content("[1]")]
    wrong += [content('{"n": 1, "n": 1}'), content('{"n": 1, "x": 1}'), content('{"n": 1')]
    wrong += [call("g", '{"a": 1}'), call("f", "{}"), call("f", "{a:1.5}"), call("h", '{"a": 1}')]
    wrong += [content('{"n": 1} Hello.'), "Hello. " + content('{"n": 1}')]
    wrong += [content('{"n": 1}') + call("f", '{"a": 1}'), call("f", '{"a": 1}') + "Hello."]
    for lead in before:
        check_matches(source, [lead + text for text in right], [lead + text for text in wrong])
    for text in rest:  # nothing but reasoning
        check_matches(source, [], [before[0].removesuffix(written.closing), text])


@pytest.mark.parametrize("written", FORMATS, ids=lambda written: written.tool_format)
def test_constrained_content_without_tools(written: WrittenFormat) -> None:
    source = compile_spec(
        constraint=make_constraint(CONTENT),
        reasoning_format=written.reasoning,
        starts_in_reasoning=False,
    )
    content = written.content.format
    reasoning = f"{written.opening}So.{written.closing}"
    right = [content('{"n": 1}'), reasoning + content('{"n": 1, "s": "x"}')]
    check_matches(
        source, right, ["So.", reasoning, reasoning + "So.", reasoning + written.call("f", "{}")]
    )


# one call, or several


@pytest.mark.parametrize("name", list(get_tool_formats()))
def test_at_most_one_call_without_parallel_calls(name: str) -> None:
    chance = random.Random(name)
    pair = FormatPair(name, {"f": make_object("a", a=NUMBER), "g": make_object()}, "none")
    several, single = (
        pair.compile(tool_choice="required"),
        pair.compile(tool_choice="required", max_calls=1),
    )
    free = pair.compile(max_calls=1)
    seen = set()
    for text in pair.iter_walks(several, chance, [""] * 40):
        count = len(pair.parse(text).raw_calls)
        text = text.rstrip()  # white space may be the start of another call
        assert match_grammar(single, text)[0] is (count == 1), text
        assert match_grammar(free, text)[0] or count > 1 or name in UNMARKED, text
        assert not match_grammar(free, text)[0] or count == 1, text
        seen.add(min(count, 2))
        if len(seen) == 2 or name == "glm4_legacy":
            return
    raise AssertionError(f"{name}: only answers with {seen} calls came up")


UNMARKED = {name for name, entry in get_tool_formats().items() if entry.unmarked_starts}

# schemas and the values that they allow

TREE = make_object("v", v=NUMBER, below={"type": "array", "items": {"$ref": "#/$defs/tree"}})
OPTIONAL = make_object(a=NUMBER, b=NUMBER, c=NUMBER)
CONTENTS: list[tuple[Any, list[str], list[str]]] = [
    (None, ["{}", '{"a": [1, {"b": null}]}'], ["", "[]", "1", '"a"', "{} {}"]),
    ({"type": "array", "items": NUMBER}, ["[]", "[1, 2]"], ["{}", "[1,]", "[,1]", '["1"]', "1"]),
    (TEXT, ['""', '"a\\n\\u00e9 \\"é"'], ["a", '"a', '"\n"', '"\\x"', '"\\ud800"']),
    ({"enum": ["é", 1, None]}, ['"é"', "1", "null", '"\\u00e9"'], ['"e"', "2", "true"]),
    (
        OPTIONAL,
        ["{}", '{"b": 1}', '{"c": 1, "a": 2}', '{"b": 1,\n "c": 2}', '{ "a":1 }'],
        ['{,"b": 1}', '{"b": 1,}', '{"a": 1,, "c": 2}', '{"a": 1 "b": 2}', '{"a": 1, "a": 2}'],
    ),
    (
        make_object("größe", größe=NUMBER, **{"a b": TEXT, "": NUMBER}),
        ['{"größe": 1}', '{"gr\\u00f6\\u00dfe": 1, "a b": ""}', '{"größe": 1, "": 2}'],
        ['{"grosse": 1}', '{"größe": 1, "ab": ""}'],
    ),
    (
        {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
        ['{"v": 1}', '{"v": 1, "below": [{"v": 2, "below": []}, {"v": 3}]}'],
        ['{"below": []}', '{"v": 1, "below": [{}]}', '{"v": 1, "below": {"v": 2}}'],
    ),
    (
        {"anyOf": [make_object("a", a=NUMBER), make_object("b", b=TEXT), {"type": "null"}]},
        ['{"a": 1}', '{"b": "x"}', "null"],
        ["{}", '{"a": "x"}', '{"a": 1, "b": "x"}', "true"],
    ),
    (make_object(), ["{}", "{ }"], ['{"a": 1}', "[]"]),
    (
        make_object("a", additional=NUMBER, a=TEXT),
        ['{"a": "", "b": 1, "c": 2}'],
        ['{"a": "", "b": ""}'],
    ),
    (
        make_object(additional={"type": "boolean"}, a=NUMBER) | {"patternProperties": {"^b": TEXT}},
        ["{}", '{"a": 1, "b": "", "b1": "x", "c": true}', '{"ab": true}'],
        ['{"a": 1, "\\u0061": true}', '{"b": true}', '{"\\u0062": true}', '{"ab": ""}'],
    ),
    (
        make_object("b1") | {"patternProperties": {r"^b\d$": TEXT, "1": {"maxLength": 2}}},
        ['{"b1": "xy"}', '{"b1": "", "b2": "xyz", "a1": "xy"}'],
        ["{}", '{"b1": "xyz"}', '{"b1": "", "a1": "xyz"}', '{"b1": "", "b\u0661": ""}'],
    ),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), CONTENTS, ids=lambda value: repr(value)[:40])
def test_schemas_allow_their_values_only(schema: Any, right: list[str], wrong: list[str]) -> None:
    check_matches(
        compile_spec(constraint=make_constraint(schema, strict=schema is not None)), right, wrong
    )


THREE = make_object("one two", one=NUMBER, two={"enum": ["x", "y"]}, three={"type": "boolean"})


@pytest.mark.parametrize(
    ("name", "frame", "joint", "member"),
    [
        (
            "hermes_json",
            '<tool_call>{{"name": "f", "arguments": {{{}}}}}</tool_call>',
            ", ",
            lambda key, value: f"{json.dumps(key)}: {json.dumps(value)}",
        ),
        ("pythonic", "[f({})]", ", ", lambda key, value: f"{key}={value!r}"),
        (
            "glm47",
            "<tool_call>f{}</tool_call>",
            "",
            lambda key, value: (
                f"<arg_key>{key}</arg_key><arg_value>"
                f"{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
            ),
        ),
        (
            "gemma4",
            "<|tool_call>call:f{{{}}}<tool_call|>",
            ",",
            lambda key, value: (
                f'{key}:<|"|>{value}<|"|>'
                if isinstance(value, str)
                else f"{key}:{json.dumps(value)}"
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_arguments_come_in_any_order(
    name: str, frame: str, joint: str, member: Callable[[str, Any], str]
) -> None:
    source = compile_spec({"f": THREE}, tool_format=name, tool_choice="required")

    def call(*members: tuple[str, Any]) -> str:
        return frame.format(joint.join(member(key, value) for key, value in members))

    members = [("one", 1), ("two", "y"), ("three", False)]
    right = [call(*order) for order in permutations(members)]
    right += [call(*order) for order in permutations(members[:2])]
    wrong = [call(*order) for order in permutations([*members, ("one", 2)], 4)]
    wrong += [
        call(),
        call(members[0]),
        call(members[1], members[2]),
        call(*members[:2], ("two", "x")),
    ]
    check_matches(source, right, wrong)


# a marker in a string would end it

BOUNDED = make_object("s", s={"type": "string", "maxLength": 60}, t=TEXT)


@pytest.mark.parametrize(
    ("reasoning", "name", "right", "wrong"),
    [
        ("think", "hermes_json", ["1 < 2", "</th", "<b>x</b>"], ["</think>", "<tool_call>"]),
        ("granite_text", "granite3", ["Here is a", "Hi"], ["Here is my response:", "<tool_call>"]),
        ("mistral_think", "mistral", ["[x]", "[TOOL"], ["[TOOL_CALLS]", "[/THINK]"]),
    ],
)
def test_content_contains_no_markers(
    reasoning: str, name: str, right: list[str], wrong: list[str]
) -> None:
    source = FormatPair(name, TOOLS, reasoning).compile(constraint=make_constraint(BOUNDED))
    for frame in ('{{"s": "{}"}}', '{{"s": "", "t": "{}"}}'):
        texts = [frame.format(f"a {text} b") for text in right]
        check_matches(source, texts, [frame.format(f"a {text} b") for text in wrong])


ANY_TEXT = {"type": "string", "pattern": "^.{1,40}$"}
FEW = {"type": "object", "maxProperties": 2, "additionalProperties": TEXT}
# `{}` stands for a marker, which is only allowed with an escape
ESCAPED: list[tuple[Any, str]] = [
    (ANY_TEXT, '"a {} b"'),
    ({"type": "string", "pattern": "<", "minLength": 5}, '"a {} <b\\n"'),
    ({"enum": ["a {} b", "c"]}, '"a {} b"'),
    ({"const": {"{}": ["{}"]}}, '{{"{}": ["{}"]}}'),
    (make_object("{}", **{"{}": NUMBER}), '{{"{}": 1}}'),
    ({"type": "array", "items": [{"const": "{}"}]}, '["{}"]'),
]
# `{}` stands for a marker, which is not allowed at all
RESTRICTED: list[tuple[Any, str]] = [
    ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, '"a {} b"'),
    (FEW, '{{"a": "{}"}}'),
    (FEW, '{{"a {}": ""}}'),
    ({"type": "object", "maxProperties": 1}, '{{"a": [{{"b": "{}"}}]}}'),
    ({"type": "object", "patternProperties": {"^a": TEXT}}, '{{"a {}": ""}}'),
]


def insert_marker(schema: Any, marker: str) -> Any:
    return json.loads(json.dumps(schema).replace("{}", marker))


@pytest.mark.parametrize("marker", ["<think>", "</think>", "<tool_call>"])
@pytest.mark.parametrize(("schema", "frame"), ESCAPED, ids=lambda value: repr(value)[:40])
def test_a_marker_in_content_is_escaped(schema: Any, frame: str, marker: str) -> None:
    source = FormatPair("hermes_json", TOOLS, "think").compile(
        constraint=make_constraint(insert_marker(schema, marker), True)
    )
    escape = rf"\u{ord(marker[0]):04x}{marker[1:]}"
    texts = [frame.format(*[text] * frame.count("{}")) for text in (escape, marker)]
    check_matches(source, texts[:1], texts[1:])
    assert FormatPair("hermes_json", TOOLS, "think").parse(texts[0]).text == texts[0]


@pytest.mark.parametrize(("schema", "frame"), RESTRICTED, ids=lambda value: repr(value)[:40])
def test_delegated_schemas_contain_no_markers(schema: Any, frame: str) -> None:
    source = FormatPair("hermes_json", TOOLS, "think").compile(
        constraint=make_constraint(schema, True)
    )
    check_matches(
        source, [frame.format("x < y")], [frame.format("<think>"), frame.format("</think>")]
    )


def test_a_schema_that_requires_a_marker_is_rejected() -> None:
    both = {"type": "string", "allOf": [{"pattern": "<think>"}, {"pattern": "b"}]}
    with pytest.raises(BadRequest) as caught:
        FormatPair("hermes_json", TOOLS, "think").compile(constraint=make_constraint(both, True))
    assert "cannot be enforced" in caught.value.message
