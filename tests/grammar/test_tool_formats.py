"""The grammar of every tool format: what a model of it writes is allowed, and no other call is.

Our own cases are data files in `tests/formats/`. Every one of them is allowed that a model writes
who keeps to its format; those that only a forgiving reader understands say so themselves.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dragoman.formats import tool_formats
from dragoman.output.library import combine_formats
from dragoman.testing.grammars import match_grammar
from tests.formats.test_formats import ALL, TOOLS, parser
from tests.support.grammars import FormatPair, Schemas, compile_spec

pytestmark = pytest.mark.slow

NAMES = list(tool_formats())
# a header that is plain letters cannot be told from an answer without one
LETTERED = {"functionary_v32", "harmony", "muse_glimmer"}


def members(required: str = "", **properties: Any) -> dict[str, Any]:
    """The schema of an object with these members and no other."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


THOUGHTS = {"ernie45": "think", "kimi_k3": "think", "solar_open": "think"}
MARKS = {"inkling": ("<|content_thinking|>", "<|end_message|>", "<|content_text|>")}
ANY_NUMBER = {"type": "integer"}
ANY_TEXT = {"type": "string"}
# what the formats' examples call
EXAMPLES: dict[str, Any] = {
    "gemma4": members(
        "city",
        city=ANY_TEXT,
        n=ANY_NUMBER,
        o=members(k={"type": "boolean"}),
        l={"type": "array", "items": ANY_NUMBER},
    ),
    "functiongemma": members("a", a=ANY_TEXT),
    "pythonic": members("a", a=ANY_NUMBER, b=ANY_TEXT),
    "sarashina": members("a", a={"type": "boolean"}),
}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_format_is_allowed(name: str, choice: str) -> None:
    example = tool_formats()[name].example
    tools = {"f": EXAMPLES.get(name, members("a", a=ANY_NUMBER)), "g": members()}
    source = compile_spec(tools, tool_format=name, tool_choice=choice)
    assert match_grammar(source, example)[0]
    for text in ("", "Hello there.", "Well, 1 < 2.\n\nSo it is."):
        assert match_grammar(source, text)[0] is (choice == "auto" and name not in LETTERED)
    if choice == "required":
        assert not match_grammar(source, example[: len(example) // 2])[0]
        assert not match_grammar(source, f"Well. {example}")[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LETTERED])
def test_thoughts_and_words_come_before_a_call(name: str) -> None:
    example = tool_formats()[name].example
    pair = FormatPair(name, {"f": EXAMPLES.get(name, members("a", a=ANY_NUMBER))}, THOUGHTS.get(name))
    opening, closing, answer = MARKS.get(pair.reasoning, ("<think>", "</think>", ""))
    for choice in ("auto", "required"):
        free = choice == "auto"
        source = pair.compile(tool_choice=choice)
        thoughts = f"{opening}I call f.\nMaybe.{closing}"
        assert match_grammar(source, thoughts + example)[0]
        assert match_grammar(source, f"{thoughts}{answer}Well.")[0] is free
        text = f"{thoughts}{answer}I call f. {closing if answer else ''}{example}"
        assert match_grammar(source, text)[0] is free
        inside = pair.compile(tool_choice=choice, starts_in_reasoning=True)
        assert match_grammar(inside, thoughts.removeprefix(opening) + example)[0]


# calls that are wrong in one thing

UNIT = {"enum": ["c", "f"]}
STRICT = {"f": members("count", count=ANY_NUMBER, unit=UNIT)}
FINE: list[Schemas] = [
    {"f": members("count unit", count={"const": 3}, unit={"const": "c"})},
    {"f": members("count", count={"type": "integer", "minimum": 2, "maximum": 40})},
]
WRONG: dict[str, Schemas] = {
    "another name": {"g": STRICT["f"]},
    "a longer name": {"f2": STRICT["f"]},
    "no count": {"f": members("unit", unit=UNIT)},
    "no arguments": {"f": members()},
    "a word for a number": {"f": members("count", count={"const": "many"})},
    "a number that is no integer": {"f": members("count", count={"const": 1.5})},
    "nothing for a number": {"f": members("count", count={"const": None})},
    "a list": {"f": members("count", count={"type": "array", "items": ANY_NUMBER, "minItems": 1})},
    "one more": {"f": members("count more", count=ANY_NUMBER, more=ANY_NUMBER)},
    "another case": {"f": members("Count", Count=ANY_NUMBER)},
    "none of the choices": {"f": members("count unit", count=ANY_NUMBER, unit={"const": "k"})},
    "more than a choice": {"f": members("count unit", count=ANY_NUMBER, unit={"const": "cc"})},
}
# without a mark of their own, calls of others are text
UNMARKED = {
    name for name, one in tool_formats().items() if one.unmarked_starts or one.unmarked_at_start
}


def a_call(name: str, tools: Schemas, chance: random.Random) -> str:
    """A call that these tools allow."""
    pair = FormatPair(name, tools, "none")
    return next(
        pair.iter_walks(pair.compile(tool_choice="required", parallel_calls=False), chance, [""] * 9)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_wrong_in_one_thing_is_not_allowed(name: str) -> None:
    chance, strict = random.Random(name), FormatPair(name, STRICT, "none")
    forced, free = strict.compile(tool_choice="required"), strict.compile()
    for tools in FINE:
        text = a_call(name, tools, chance)
        assert match_grammar(forced, text)[0], text
    for what, tools in WRONG.items():
        text = a_call(name, tools, chance)
        assert not match_grammar(forced, text)[0], f"{what}: {text}"
        if name not in UNMARKED:
            assert not match_grammar(free, text)[0], f"{what}: {text}"
        elif match_grammar(free, text)[0]:
            assert strict.find_error(text, forced=False) is None, f"{what}: {text}"


# values that could be read as something else

FRAMES = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=v>\n{}\n</parameter>\n</function>\n"
    "</tool_call>",
    "minimax_m3": ']~<tool_call>]~<invoke name="f">]~<v>{}]~</v>]~</invoke>]~</tool_call>',
    "gemma4": "<|tool_call>call:f{{{}}}<tool_call|>",
    "functiongemma": "<start_function_call>call:f{{{}}}<end_function_call>",
}
ITEM = "]~<item>{}]~</item>"
PAIRED = {"type": "array", "prefixItems": [ANY_NUMBER, ANY_TEXT]}
SHORT = {"type": "string", "pattern": "^.{1,40}$"}
NAMED = {"type": "object", "patternProperties": {"^a": ANY_TEXT}, "additionalProperties": False}
# a format, what `v` may be, and texts with what is read in them; None is not allowed
READ: list[tuple[str, Any, dict[str, Any]]] = [
    (
        "qwen3_coder",
        {"type": "array", "items": SHORT},
        {'["a</parameter>b"]': None, r'["a\u003c/parameter>b"]': ["a</parameter>b"]},
    ),
    (
        "qwen3_coder",
        {"type": "array", "items": {"enum": ["</parameter>"]}},
        {"['</parameter>']": None, r"['\u003c/parameter>']": ["</parameter>"]},
    ),
    ("qwen3_coder", NAMED, {'{"a</parameter>": ""}': None, "{'ab': 'c'}": {"ab": "c"}}),
    ("minimax_m3", NAMED, {'{"a": "]~</v>"}': None, '{"ab": "c"}': {"ab": "c"}}),
    (
        "minimax_m3",
        PAIRED | {"minItems": 2, "maxItems": 3},
        {"": None, "[]": None, ITEM.format(3): None}
        | {ITEM.format(3) + ITEM.format(4): [3, "4"]}
        | {ITEM.format(3) + ITEM.format(4) * 2: [3, "4", 4]}
        | {ITEM.format(3) + ITEM.format(4) * 3: None},
    ),
    (
        "minimax_m3",
        PAIRED | {"items": False},
        {"": None, "[]": [], ITEM.format(3): [3]} | {ITEM.format(3) * 2: [3, "3"]},
    ),
    ("minimax_m3", {"type": "array", "maxItems": 0}, {"": None, "[]": [], ITEM.format(3): None}),
    ("minimax_m3", {"type": "array", "items": False}, {"": None, "[]": []}),
    (
        "minimax_m3",
        {"type": "object", "additionalProperties": ANY_TEXT},
        {"{}": {}, "]~<x>1]~</x>": {"x": "1"}, '{"x": "1"}': {"x": "1"}},
    ),
]


def read_back(name: str, schema: Any, text: str) -> Any:
    """What is read in the only call of a text, if the grammar allows that; else nothing."""
    pair = FormatPair(name, {"f": schema}, "none")
    if not match_grammar(pair.compile(tool_choice="required"), text)[0]:
        return None
    [(_, arguments)] = pair.parse(text).raw_calls
    return json.loads(arguments)


@pytest.mark.parametrize(("name", "schema", "said"), READ, ids=lambda one: repr(one)[:40])
def test_what_is_allowed_is_read_as_it_was_meant(
    name: str, schema: Any, said: dict[str, Any]
) -> None:
    for text, value in said.items():
        whole = FRAMES[name].format(text).replace("]~", "]<]minimax[>[")
        found = read_back(name, members("v", v=schema), whole)
        assert found == (None if value is None else {"v": value}), text


def test_elements_of_any_name_hold_text() -> None:
    schema = {"type": "object", "additionalProperties": ANY_TEXT}
    frame = FRAMES["minimax_m3"].replace("]~<v>{}]~</v>", "{}").replace("]~", "]<]minimax[>[")
    one = "]<]minimax[>[<x>1]<]minimax[>[</x>"
    assert read_back("minimax_m3", schema, frame.format(one)) == {"x": "1"}
    assert read_back("minimax_m3", schema, frame.format("")) == {}


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
@pytest.mark.parametrize(
    "key", ["first name", "xml:lang", "a[]", "a,b", "(x)", "{x", "", '"q"', "'", "a=b", ";x", "<x>"]
)
def test_a_key_that_is_no_word_is_in_quotes(name: str, key: str) -> None:
    schema = members(key, **{key: ANY_NUMBER}) | {"required": [key]}
    for way, value in ((json.dumps(key), {key: 1}), (key, None)):
        assert read_back(name, schema, FRAMES[name].format(f"{way}:1")) == value


@pytest.mark.parametrize(("name", "mark"), [("gemma4", '<|"|>'), ("functiongemma", "<escape>")])
def test_a_text_that_holds_its_own_quotes_is_in_others(name: str, mark: str) -> None:
    schema = members("v", v={"enum": [f"a{mark}b", "c"]})
    said = {f"v:{mark}a{mark}b{mark}": None, f"v:{mark}c{mark}": {"v": "c"}}
    way = json.dumps(f"a{mark}b").replace(mark, "\\u003c" + mark[1:])
    for text, value in (said | {f"v:{way}": {"v": f"a{mark}b"}}).items():
        assert read_back(name, schema, FRAMES[name].format(text)) == value


# our own cases


def declared(case: dict[str, Any]) -> Schemas:
    if case.get("any"):
        return {name: {"type": "object"} for name, _ in case["says"].get("calls", [])}
    return {one["function"]["name"]: one["function"]["parameters"] for one in TOOLS}


@pytest.mark.parametrize("case", ALL)
def test_what_a_model_writes_is_allowed(case: dict[str, Any]) -> None:
    name, reasoning = case["format"] or "hermes_json", case["reasoning"]
    header, prompt = combine_formats(name, reasoning).header, case.get("prompt") or ""
    source = compile_spec(
        declared(case),
        tool_format=name,
        reasoning_format=reasoning,
        starts_in_reasoning=parser(case).in_reasoning,
        header_start=prompt if header is not None and prompt.endswith(header.open) else None,
    )
    assert match_grammar(source, case["text"])[0] is not case.get("forgiven", False)
