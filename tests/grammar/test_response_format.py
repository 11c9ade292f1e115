"""What an answer's content must be, alone and beside tools and thoughts, in one grammar.

An answer is thoughts, then content of its shape or a call of a declared tool, and nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple

import pytest

from dragoman.errors import BadRequest
from dragoman.formats import tool_formats
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint
from tests.support.grammars import FormatPair, compile_spec

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def members(required: str = "", others: Any = False, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": others,
    }


def shape(schema: Any = None, strict: bool | None = None) -> Constraint:
    return Constraint(kind="json", value=schema, strict=strict, param="response_format")


def means(source: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not match_grammar(source, text)[0]] == []
    assert [text for text in wrong if match_grammar(source, text)[0]] == []


# thoughts, tools and a shape at once


class Voice(NamedTuple):
    """How a model writes thoughts, content and calls."""

    reasoning: str
    format: str
    opens: str
    closes: str
    content: str  # around it
    call: Callable[[str, str], str]
    quotes: str  # what its thoughts may quote


VOICES = [
    Voice(
        "think",
        "hermes_json",
        "<think>",
        "</think>\n\n",
        "{}",
        lambda name, said: f'<tool_call>\n{{"name": "{name}", "arguments": {said}}}\n</tool_call>',
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call> or {"n": ',
    ),
    Voice(
        "harmony",
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant",
        "<|channel|>final<|message|>{}<|return|>",
        lambda name, said: (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{said}<|call|>"
        ),
        'commentary to=functions.g {"a": true} or {"n": ',
    ),
    Voice(
        "mistral_think",
        "mistral",
        "[THINK]",
        "[/THINK]",
        "{}",
        lambda name, said: f"[TOOL_CALLS]{name}[ARGS]{said}",
        '[TOOL_CALLS]g[ARGS]{"a": true} or {"n": ',
    ),
    Voice(
        "gemma4_channel",
        "gemma4",
        "<|channel>thought\n",
        "<channel|>",
        "{}",
        lambda name, said: "<|tool_call>call:{}{}<tool_call|>".format(name, said.replace('"', "")),
        '<|tool_call>call:g{a:true}<tool_call|> or {"n": ',
    ),
]
TOOLS = {"f": members("a", a=NUMBER), "h": members()}
CONTENT = members("n", n=NUMBER, s=TEXT)


@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.format)
@pytest.mark.parametrize("begins", ["open", "inside", "at once"])
def test_thoughts_then_content_or_a_call(voice: Voice, begins: str) -> None:
    source = FormatPair(voice.format, TOOLS, voice.reasoning).compile(
        constraint=shape(CONTENT), starts_in_reasoning=begins == "inside"
    )
    rest = ["I think.\nSo.", "", voice.quotes]
    before = [f"{voice.opens}{one}{voice.closes}" for one in rest]
    if begins == "inside":
        before = [f"{one}{voice.closes}" for one in rest]
    elif begins == "at once":
        before = [""]
    content, call = voice.content.format, voice.call
    right = [content('{"n": 1}'), content('{"n": 1, "s": "{\\"a\\": 2}"}'), call("f", '{"a": 1}')]
    right += [call("h", "{}")]
    wrong = [content("Hello."), "Hello.", "", content("{}"), content('{"n": "1"}'), content("[1]")]
    wrong += [content('{"s": "", "n": 1}'), content('{"n": 1, "x": 1}'), content('{"n": 1')]
    wrong += [call("g", '{"a": 1}'), call("f", "{}"), call("f", "{a:1.5}"), call("h", '{"a": 1}')]
    wrong += [content('{"n": 1} Hello.'), "Hello. " + content('{"n": 1}')]
    wrong += [content('{"n": 1}') + call("f", '{"a": 1}'), call("f", '{"a": 1}') + "Hello."]
    for one in before:
        means(source, [one + text for text in right], [one + text for text in wrong])
    for text in rest:  # nothing but thoughts
        means(source, [], [before[0].removesuffix(voice.closes), text])


@pytest.mark.parametrize("voice", VOICES, ids=lambda voice: voice.format)
def test_content_of_a_shape_without_tools(voice: Voice) -> None:
    source = compile_spec(
        constraint=shape(CONTENT), reasoning_format=voice.reasoning, starts_in_reasoning=False
    )
    content = voice.content.format
    thoughts = f"{voice.opens}So.{voice.closes}"
    right = [content('{"n": 1}'), thoughts + content('{"n": 1, "s": "x"}')]
    means(source, right, ["So.", thoughts, thoughts + "So.", thoughts + voice.call("f", "{}")])


# one call, or several


@pytest.mark.parametrize("name", list(tool_formats()))
def test_one_call_where_only_one_may_be_made(name: str) -> None:
    chance = random.Random(name)
    pair = FormatPair(name, {"f": members("a", a=NUMBER), "g": members()}, "none")
    several, single = (
        pair.compile(tool_choice="required"),
        pair.compile(tool_choice="required", parallel_calls=False),
    )
    free = pair.compile(parallel_calls=False)
    seen = set()
    for text in pair.iter_walks(several, chance, [""] * 40):
        count = len(pair.parse(text).raw_calls)
        text = text.rstrip()  # white space may be all there is of another one
        assert match_grammar(single, text)[0] is (count == 1), text
        assert match_grammar(free, text)[0] or count > 1 or name in UNMARKED, text
        assert not match_grammar(free, text)[0] or count == 1, text
        seen.add(min(count, 2))
        if len(seen) == 2 or name == "glm4_legacy":
            return
    raise AssertionError(f"of {name}, calls of {seen} were seen")


UNMARKED = {name for name, one in tool_formats().items() if one.unmarked_starts}

# what schemas mean

TREE = members("v", v=NUMBER, below={"type": "array", "items": {"$ref": "#/$defs/tree"}})
OPTIONAL = members(a=NUMBER, b=NUMBER, c=NUMBER)
CONTENTS: list[tuple[Any, list[str], list[str]]] = [
    (None, ["{}", '{"a": [1, {"b": null}]}'], ["", "[]", "1", '"a"', "{} {}"]),
    ({"type": "array", "items": NUMBER}, ["[]", "[1, 2]"], ["{}", "[1,]", "[,1]", '["1"]', "1"]),
    (TEXT, ['""', '"a\\n\\u00e9 \\"é"'], ["a", '"a', '"\n"', '"\\x"', '"\\ud800"']),
    ({"enum": ["é", 1, None]}, ['"é"', "1", "null", '"\\u00e9"'], ['"e"', "2", "true"]),
    (
        OPTIONAL,
        ["{}", '{"b": 1}', '{"a": 1, "c": 2}', '{"b": 1,\n "c": 2}', '{ "a":1 }'],
        ['{,"b": 1}', '{"b": 1,}', '{"a": 1,, "c": 2}', '{"a": 1 "b": 2}', '{"c": 1, "a": 2}'],
    ),
    (
        members("größe", größe=NUMBER, **{"a b": TEXT, "": NUMBER}),
        ['{"größe": 1}', '{"gr\\u00f6\\u00dfe": 1, "a b": ""}', '{"größe": 1, "": 2}'],
        ['{"grosse": 1}', '{"größe": 1, "ab": ""}'],
    ),
    (
        {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
        ['{"v": 1}', '{"v": 1, "below": [{"v": 2, "below": []}, {"v": 3}]}'],
        ['{"below": []}', '{"v": 1, "below": [{}]}', '{"v": 1, "below": {"v": 2}}'],
    ),
    (
        {"anyOf": [members("a", a=NUMBER), members("b", b=TEXT), {"type": "null"}]},
        ['{"a": 1}', '{"b": "x"}', "null"],
        ["{}", '{"a": "x"}', '{"a": 1, "b": "x"}', "true"],
    ),
    (members(), ["{}", "{ }"], ['{"a": 1}', "[]"]),
    (members("a", others=NUMBER, a=TEXT), ['{"a": "", "b": 1, "c": 2}'], ['{"a": "", "b": ""}']),
    (
        members(others={"type": "boolean"}, a=NUMBER) | {"patternProperties": {"^b": TEXT}},
        ["{}", '{"a": 1, "b": "", "b1": "x", "c": true}', '{"ab": true}'],
        ['{"a": 1, "\\u0061": true}', '{"b": true}', '{"\\u0062": true}', '{"ab": ""}'],
    ),
    (
        members("b1") | {"patternProperties": {r"^b\d$": TEXT, "1": {"maxLength": 2}}},
        ['{"b1": "xy"}', '{"b1": "", "b2": "xyz", "a1": "xy"}'],
        ["{}", '{"b1": "xyz"}', '{"b1": "", "a1": "xyz"}', '{"b1": "", "b\u0661": ""}'],
    ),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), CONTENTS, ids=lambda one: repr(one)[:40])
def test_what_a_schema_allows(schema: Any, right: list[str], wrong: list[str]) -> None:
    means(compile_spec(constraint=shape(schema, strict=schema is not None)), right, wrong)


THREE = members("one two", one=NUMBER, two={"enum": ["x", "y"]}, three={"type": "boolean"})


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

    def call(*said: tuple[str, Any]) -> str:
        return frame.format(joint.join(member(key, value) for key, value in said))

    said = [("one", 1), ("two", "y"), ("three", False)]
    right = [call(*order) for order in permutations(said)]
    right += [call(*order) for order in permutations(said[:2])]
    wrong = [call(*order) for order in permutations([*said, ("one", 2)], 4)]
    wrong += [call(), call(said[0]), call(said[1], said[2]), call(*said[:2], ("two", "x"))]
    means(source, right, wrong)


# a mark in a text would end it

BOUNDED = members("s", s={"type": "string", "maxLength": 60}, t=TEXT)


@pytest.mark.parametrize(
    ("reasoning", "name", "right", "wrong"),
    [
        ("think", "hermes_json", ["1 < 2", "</th", "<b>x</b>"], ["</think>", "<tool_call>"]),
        ("granite_text", "granite3", ["Here is a", "Hi"], ["Here is my response:", "<tool_call>"]),
        ("mistral_think", "mistral", ["[x]", "[TOOL"], ["[TOOL_CALLS]", "[/THINK]"]),
    ],
)
def test_content_holds_no_marks(
    reasoning: str, name: str, right: list[str], wrong: list[str]
) -> None:
    source = FormatPair(name, TOOLS, reasoning).compile(constraint=shape(BOUNDED))
    for frame in ('{{"s": "{}"}}', '{{"s": "", "t": "{}"}}'):
        texts = [frame.format(f"a {text} b") for text in right]
        means(source, texts, [frame.format(f"a {text} b") for text in wrong])


ANY_TEXT = {"type": "string", "pattern": "^.{1,40}$"}
FEW = {"type": "object", "maxProperties": 2, "additionalProperties": TEXT}
# what `{}` stands for is written in both ways: as it is, which nothing allows, and escaped
HOLDING: list[tuple[Any, str]] = [
    (ANY_TEXT, '"a {} b"'),
    ({"type": "string", "pattern": "<", "minLength": 5}, '"a {} <b\\n"'),
    ({"enum": ["a {} b", "c"]}, '"a {} b"'),
    ({"const": {"{}": ["{}"]}}, '{{"{}": ["{}"]}}'),
    (members("{}", **{"{}": NUMBER}), '{{"{}": 1}}'),
    ({"type": "array", "items": [{"const": "{}"}]}, '["{}"]'),
]
# the same, of which nothing that holds a mark is left
WITHOUT: list[tuple[Any, str]] = [
    ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, '"a {} b"'),
    (FEW, '{{"a": "{}"}}'),
    (FEW, '{{"a {}": ""}}'),
    ({"type": "object", "maxProperties": 1}, '{{"a": [{{"b": "{}"}}]}}'),
    ({"type": "object", "patternProperties": {"^a": TEXT}}, '{{"a {}": ""}}'),
]


def filled(value: Any, mark: str) -> Any:
    """A schema with a mark in its texts."""
    return json.loads(json.dumps(value).replace("{}", mark))


@pytest.mark.parametrize("mark", ["<think>", "</think>", "<tool_call>"])
@pytest.mark.parametrize(("schema", "frame"), HOLDING, ids=lambda one: repr(one)[:40])
def test_a_mark_in_content_is_an_escape(schema: Any, frame: str, mark: str) -> None:
    source = FormatPair("hermes_json", TOOLS, "think").compile(
        constraint=shape(filled(schema, mark), True)
    )
    escape = rf"\u{ord(mark[0]):04x}{mark[1:]}"
    texts = [frame.format(*[one] * frame.count("{}")) for one in (escape, mark)]
    means(source, texts[:1], texts[1:])
    assert FormatPair("hermes_json", TOOLS, "think").parse(texts[0]).text == texts[0]


@pytest.mark.parametrize(("schema", "frame"), WITHOUT, ids=lambda one: repr(one)[:40])
def test_what_the_engine_writes_holds_no_marks(schema: Any, frame: str) -> None:
    source = FormatPair("hermes_json", TOOLS, "think").compile(constraint=shape(schema, True))
    means(source, [frame.format("x < y")], [frame.format("<think>"), frame.format("</think>")])


def test_what_cannot_be_written_without_a_mark_is_refused() -> None:
    both = {"type": "string", "allOf": [{"pattern": "<think>"}, {"pattern": "b"}]}
    with pytest.raises(BadRequest) as caught:
        FormatPair("hermes_json", TOOLS, "think").compile(constraint=shape(both, True))
    assert "cannot be enforced" in caught.value.message
