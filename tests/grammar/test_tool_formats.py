"""The grammar of every tool format allows what its models write, and no other call.

The cases in `tests/formats/` are data files. The grammar allows every case that follows the format;
a case that only the tolerant parser accepts is marked as `lenient`.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from dragoman.formats import find_reasoning, get_tool_formats
from dragoman.output.library import combine_formats
from dragoman.testing.grammars import match_grammar
from tests.formats.test_formats import ALL, TOOLS, parser
from tests.support.grammars import FormatPair, Schemas, compile_spec, make_object

pytestmark = pytest.mark.slow

NAMES = list(get_tool_formats())
# an answer without a header cannot be distinguished from a header in plain text
PLAIN_HEADERS = {"beam", "functionary_v32", "harmony", "muse_glimmer"}


REASONING_FORMATS = {"ernie45": "think", "kimi_k3": "think", "solar_open": "think"}
REASONING_MARKERS = {"inkling": ("<|content_thinking|>", "<|end_message|>", "<|content_text|>")}
ANY_NUMBER = {"type": "integer"}
ANY_TEXT = {"type": "string"}
# the tools that the examples of the formats call
EXAMPLES: dict[str, Any] = {
    "gemma4": make_object(
        "city",
        city=ANY_TEXT,
        n=ANY_NUMBER,
        o=make_object(k={"type": "boolean"}),
        l={"type": "array", "items": ANY_NUMBER},
    ),
    "functiongemma": make_object("a", a=ANY_TEXT),
    "pythonic": make_object("a", a=ANY_NUMBER, b=ANY_TEXT),
    "sarashina": make_object("a", a={"type": "boolean"}),
}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_format_is_allowed(name: str, choice: str) -> None:
    example = get_tool_formats()[name].example
    tools = {"f": EXAMPLES.get(name, make_object("a", a=ANY_NUMBER)), "g": make_object()}
    source = compile_spec(tools, tool_format=name, tool_choice=choice)
    assert match_grammar(source, example)[0]
    for text in ("", "Hello there.", "Well, 1 < 2.\n\nSo it is."):
        assert match_grammar(source, text)[0] is (choice == "auto" and name not in PLAIN_HEADERS)
    if choice == "required":
        assert not match_grammar(source, example[: len(example) // 2])[0]
        assert not match_grammar(source, f"Well. {example}")[0]


def get_reasoning_markers(name: str) -> tuple[str, str, str]:
    """Return the markers that open and close reasoning, and the one before the answer."""
    if name in REASONING_MARKERS:
        return REASONING_MARKERS[name]
    reasoning = find_reasoning(name)
    return (*reasoning.open_with_name, *reasoning.opens_at_start)[0], reasoning.close[0], ""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PLAIN_HEADERS])
def test_reasoning_and_text_come_before_a_call(name: str) -> None:
    example = get_tool_formats()[name].example
    pair = FormatPair(
        name, {"f": EXAMPLES.get(name, make_object("a", a=ANY_NUMBER))}, REASONING_FORMATS.get(name)
    )
    opening, closing, answer = get_reasoning_markers(pair.reasoning)
    for choice in ("auto", "required"):
        free = choice == "auto"
        source = pair.compile(tool_choice=choice)
        reasoning = f"{opening}I call f.\nMaybe.{closing}"
        assert match_grammar(source, reasoning + example)[0]
        assert match_grammar(source, f"{reasoning}{answer}Well.")[0] is free
        text = f"{reasoning}{answer}I call f. {closing if answer else ''}{example}"
        assert match_grammar(source, text)[0] is free
        inside = pair.compile(tool_choice=choice, starts_in_reasoning=True)
        assert match_grammar(inside, reasoning.removeprefix(opening) + example)[0]


# calls with one error

UNIT = {"enum": ["c", "f"]}
STRICT = {"f": make_object("count", count=ANY_NUMBER, unit=UNIT)}
VALID: list[Schemas] = [
    {"f": make_object("count unit", count={"const": 3}, unit={"const": "c"})},
    {"f": make_object("count", count={"type": "integer", "minimum": 2, "maximum": 40})},
]
INVALID: dict[str, Schemas] = {
    "another name": {"g": STRICT["f"]},
    "a longer name": {"f2": STRICT["f"]},
    "no count": {"f": make_object("unit", unit=UNIT)},
    "no arguments": {"f": make_object()},
    "a word for a number": {"f": make_object("count", count={"const": "many"})},
    "a number that is no integer": {"f": make_object("count", count={"const": 1.5})},
    "nothing for a number": {"f": make_object("count", count={"const": None})},
    "a list": {
        "f": make_object("count", count={"type": "array", "items": ANY_NUMBER, "minItems": 1})
    },
    "one more": {"f": make_object("count more", count=ANY_NUMBER, more=ANY_NUMBER)},
    "another case": {"f": make_object("Count", Count=ANY_NUMBER)},
    "none of the choices": {"f": make_object("count unit", count=ANY_NUMBER, unit={"const": "k"})},
    "more than a choice": {"f": make_object("count unit", count=ANY_NUMBER, unit={"const": "cc"})},
}
# in formats without markers, calls of undeclared tools are text
UNMARKED = {
    name
    for name, entry in get_tool_formats().items()
    if entry.unmarked_starts or entry.unmarked_at_start
}


def make_call(name: str, tools: Schemas, chance: random.Random) -> str:
    """Write a random call of one of these tools."""
    pair = FormatPair(name, tools, "none")
    return next(
        pair.iter_walks(pair.compile(tool_choice="required", max_calls=1), chance, [""] * 9)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_call_with_one_error_is_not_allowed(name: str) -> None:
    chance, strict = random.Random(name), FormatPair(name, STRICT, "none")
    forced, free = strict.compile(tool_choice="required"), strict.compile()
    for tools in VALID:
        text = make_call(name, tools, chance)
        assert match_grammar(forced, text)[0], text
    for problem, tools in INVALID.items():
        text = make_call(name, tools, chance)
        assert not match_grammar(forced, text)[0], f"{problem}: {text}"
        if name not in UNMARKED:
            assert not match_grammar(free, text)[0], f"{problem}: {text}"
        elif match_grammar(free, text)[0]:
            assert strict.find_error(text, forced=False) is None, f"{problem}: {text}"


OBJECT = '{"name": "f", "arguments": {"wrong": 1}}'


@pytest.mark.parametrize("follower", [OBJECT, f"[{OBJECT}]", "[f(wrong=1)]"])
@pytest.mark.parametrize("name", NAMES)
def test_text_after_a_call_is_no_unconstrained_call(name: str, follower: str) -> None:
    pair = FormatPair(name, {"f": EXAMPLES.get(name, make_object("a", a=ANY_NUMBER))}, "none")
    source, example = pair.compile(), get_tool_formats()[name].example
    assert match_grammar(source, example)[0]
    for separator in ("", "\n", ", ", "; ", "}", " Then "):
        text = f"{example}{separator}{follower}"
        if match_grammar(source, text)[0]:
            assert pair.find_error(text, forced=False) is None, text


PARTS: tuple[str, ...] = (
    "{",
    "}",
    '"name"',
    ": ",
    '"',
    "'",
    "function",
    '"arguments"',
    ", ",
    "[",
    "]",
    "\n",
    " so",
)
PARTS += ("tool_0", "\\n", "\\u00", "=>", "é", "\u201c", "\u200b", ";", "(", ")", " a")


@pytest.mark.parametrize("name", sorted(UNMARKED))
def test_text_around_calls_without_markers_is_not_too_complex(name: str) -> None:
    """All matches of a grammar share what it may cost."""
    tools = {f"tool_{number}_{'x' * 50}": make_object("a", a=ANY_NUMBER) for number in range(20)}
    chance, source = random.Random(name), FormatPair(name, tools).compile()
    for _ in range(100):
        match_grammar(source, "Well. " + "".join(chance.choice(PARTS) for _ in range(200)))
    assert match_grammar(source, 'Well. {"x": "It is so."}')[0]


# values that could be read as another type

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
# a format, the schema of `v`, and texts with the value that is read; None is not allowed
READINGS: list[tuple[str, Any, dict[str, Any]]] = [
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
    """Parse the arguments of the only call; return None if the grammar does not allow the text."""
    pair = FormatPair(name, {"f": schema}, "none")
    if not match_grammar(pair.compile(tool_choice="required"), text)[0]:
        return None
    [(_, arguments)] = pair.parse(text).raw_calls
    return json.loads(arguments)


@pytest.mark.parametrize(("name", "schema", "texts"), READINGS, ids=lambda value: repr(value)[:40])
def test_allowed_values_are_read_back(name: str, schema: Any, texts: dict[str, Any]) -> None:
    for text, value in texts.items():
        whole = FRAMES[name].format(text).replace("]~", "]<]minimax[>[")
        parsed = read_back(name, make_object("v", v=schema), whole)
        assert parsed == (None if value is None else {"v": value}), text


def test_elements_of_any_name_contain_text() -> None:
    schema = {"type": "object", "additionalProperties": ANY_TEXT}
    frame = FRAMES["minimax_m3"].replace("]~<v>{}]~</v>", "{}").replace("]~", "]<]minimax[>[")
    element = "]<]minimax[>[<x>1]<]minimax[>[</x>"
    assert read_back("minimax_m3", schema, frame.format(element)) == {"x": "1"}
    assert read_back("minimax_m3", schema, frame.format("")) == {}


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
@pytest.mark.parametrize(
    "key", ["first name", "xml:lang", "a[]", "a,b", "(x)", "{x", "", '"q"', "'", "a=b", ";x", "<x>"]
)
def test_a_key_that_is_no_bare_key_is_quoted(name: str, key: str) -> None:
    schema = make_object(key, **{key: ANY_NUMBER}) | {"required": [key]}
    for spelling, value in ((json.dumps(key), {key: 1}), (key, None)):
        assert read_back(name, schema, FRAMES[name].format(f"{spelling}:1")) == value


@pytest.mark.parametrize(("name", "marker"), [("gemma4", '<|"|>'), ("functiongemma", "<escape>")])
def test_a_text_that_contains_its_string_marker_is_quoted(name: str, marker: str) -> None:
    schema = make_object("v", v={"enum": [f"a{marker}b", "c"]})
    texts = {f"v:{marker}a{marker}b{marker}": None, f"v:{marker}c{marker}": {"v": "c"}}
    quoted = json.dumps(f"a{marker}b").replace(marker, "\\u003c" + marker[1:])
    for text, value in (texts | {f"v:{quoted}": {"v": f"a{marker}b"}}).items():
        assert read_back(name, schema, FRAMES[name].format(text)) == value


# the cases of the formats


def list_declared_tools(case: dict[str, Any]) -> Schemas:
    if case.get("any_tool"):
        return {name: {"type": "object"} for name, _ in case["expected"].get("calls", [])}
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


@pytest.mark.parametrize("case", ALL)
def test_the_text_of_a_case_is_allowed(case: dict[str, Any]) -> None:
    name, reasoning = case["format"] or "hermes_json", case["reasoning"]
    header, prompt = combine_formats(name, reasoning).header, case.get("prompt") or ""
    source = compile_spec(
        list_declared_tools(case),
        tool_format=name,
        reasoning_format=reasoning,
        starts_in_reasoning=parser(case).in_reasoning,
        header_start=prompt if header is not None and prompt.endswith(header.open) else None,
    )
    assert match_grammar(source, case["text"])[0] is not case.get("lenient", False)
