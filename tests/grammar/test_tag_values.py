"""Values between tags: what a grammar allows is read back as a value that the schema allows.

The reader asks the tool's schema what a text means, and the grammar is written for that reader.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from dragoman.errors import BadRequest
from dragoman.formats import find_tools
from dragoman.grammar.compiler.compile import compile_grammar
from dragoman.grammar.grammar_spec import CompiledGrammar, GrammarSpec
from dragoman.grammar.regex.full_match import is_supported_pattern, to_full_match
from dragoman.output.library import OutputParser
from dragoman.testing.format_checks import fold_spans, parse_pieces
from dragoman.testing.grammars import match_grammar
from dragoman.types import Constraint, Tool
from tests.grammar.test_response_format import members, shape

TAGS = {
    "qwen3_coder": "<tool_call>\n<function=f>{}\n</function>\n</tool_call>",
    "seed_oss": "<seed:tool_call>\n<function=f>{}\n</function>\n</seed:tool_call>",
    "minimax_m2": '<minimax:tool_call><invoke name="f">{}</invoke></minimax:tool_call>',
    "glm45": "<tool_call>f{}</tool_call>",
}
VALUES = {
    "qwen3_coder": "\n<parameter={}>\n{}\n</parameter>",
    "seed_oss": "\n<parameter={}>{}</parameter>",
    "minimax_m2": '<parameter name="{}">{}</parameter>',
    "glm45": "<arg_key>{}</arg_key><arg_value>{}</arg_value>",
}
GEMMA = '<|tool_call>call:f{{v:<|"|>{}<|"|>}}<tool_call|>'
DEEPSEEK = (
    '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="v" string="true">'
    "{}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"
)
NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def a_tool(schema: Any, *, strict: bool = True) -> Tool:
    return Tool(name="f", parameters=schema, strict=strict)


def made(name: str, schema: Any, *, strict: bool = True) -> CompiledGrammar:
    return compile_grammar(
        GrammarSpec(
            tools=(a_tool(schema, strict=strict),), tool_choice="required", tool_format=name
        )
    )


def refused(name: str, schema: Any) -> str:
    with pytest.raises(BadRequest) as error:
        made(name, schema)
    assert error.value.param == "tools"
    return error.value.message


def one(schema: Any, **more: Any) -> dict[str, Any]:
    return members("v", v=schema) | more


def allows(name: str, schema: Any, text: str) -> bool:
    source = made(name, schema).grammar
    assert source is not None
    return match_grammar(source, text)[0]


def call(name: str, **said: str) -> str:
    return TAGS[name].format("".join(VALUES[name].format(*pair) for pair in said.items()))


def heard(name: str, schema: Any, text: str) -> Any:
    said = fold_spans(
        parse_pieces(OutputParser(name, None, tools=(a_tool(schema),), inside=False), [text])
    )
    [(_, arguments)] = said.raw_calls
    return json.loads(arguments)


# what is allowed comes back

ROOTS = {"anyOf": [one(TEXT), members("v c", v=NUMBER, c=NUMBER)]}
STRINGS = {"type": ["string", "integer"], "allOf": [TEXT]}
READ: list[tuple[Any, dict[str, str], Any]] = [
    (members(v={"$ref": "#"}), {"v": '{"v": {}}'}, {"v": {"v": {}}}),
    (one({"$ref": "#/$defs/a%20b"}, **{"$defs": {"a b": NUMBER}}), {"v": "5"}, {"v": 5}),
    (one({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": NUMBER}}), {"v": "5"}, {"v": 5}),
    (one({"enum": [1, 2], "allOf": [{"title": "x"}]}), {"v": "1"}, {"v": 1}),
    (one(STRINGS), {"v": "1"}, {"v": "1"}),
    (one({"minimum": 3}), {"v": "5"}, {"v": 5}),
    (one({"type": ["string", "integer"]}), {"v": "3 apples"}, {"v": "3 apples"}),
    (one({"type": ["string", "integer"], "minimum": 3}), {"v": "3rd"}, {"v": "3rd"}),
    (one({"type": ["string", "integer"], "minimum": 3}), {"v": "5"}, {"v": 5}),
    (one({"type": ["string", "integer"], "minimum": 3}), {"v": " 5 "}, {"v": 5}),
    (one({"enum": ["table", False]}), {"v": " false"}, {"v": False}),
    (one({"type": ["string", "null"], "enum": ["nil", None]}), {"v": "null"}, {"v": None}),
    (one({"enum": ["table", False]}), {"v": "table"}, {"v": "table"}),
    (ROOTS, {"v": "2024-01-01"}, {"v": "2024-01-01"}),
    (ROOTS, {"v": "1", "c": "2"}, {"v": 1, "c": 2}),
    (one({"enum": ["5", 7, "a"]}), {"v": "7"}, {"v": 7}),
    (one({"enum": ["5", 7, "a"]}), {"v": "a"}, {"v": "a"}),
    (one({"enum": ["5", "7"]}), {"v": "5"}, {"v": "5"}),
    (one({"enum": ["a</x>", "a</arg_value>b", "a</parameter>b"]}), {"v": "a</x>"}, {"v": "a</x>"}),
    (one({"type": ["string", "object"], "patternProperties": {"^a": TEXT}}), {"v": "x"}, None),
]


@pytest.mark.parametrize("name", TAGS)
@pytest.mark.parametrize(("schema", "said", "meant"), READ, ids=lambda one: repr(one)[:50])
def test_what_is_allowed_comes_back(
    name: str, schema: Any, said: dict[str, str], meant: Any
) -> None:
    text = call(name, **said)
    assert allows(name, schema, text)
    found = heard(name, schema, text)
    jsonschema.validate(found, schema)
    assert meant is None or found == meant


OBJECT = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}
MISREAD: list[tuple[Any, dict[str, str]]] = [
    (ROOTS, {"v": "1"}),
    ({"anyOf": [one(TEXT), members("v c", v={"type": "null"}, c=NUMBER)]}, {"v": "null"}),
    ({"anyOf": [one({"enum": ["1", "x"]}), members("v c", v=NUMBER, c=NUMBER)]}, {"v": "1"}),
    ({"anyOf": [members(others=TEXT), members("v c", v=NUMBER, c=NUMBER)]}, {"v": "1"}),
    (one({"enum": ["5", 7]}), {"v": "5"}),
    (one({"enum": ["true", False]}), {"v": "true"}),
    (one({"anyOf": [{"enum": ["latest", "1"]}, {"type": "integer", "minimum": 2}]}), {"v": "1"}),
    (one({"anyOf": [{"enum": ["{}"]}, OBJECT]}), {"v": "{}"}),
    (one({"type": ["string", "integer"], "minimum": 3}), {"v": "1"}),
    (one({"type": ["string", "integer"], "minimum": 3}), {"v": "\x1c1"}),
    (one({"type": ["string", "number"], "minimum": 3}), {"v": "1e0"}),
    (one({"type": "string", "enum": ["x", "a</arg_value>b", "a</parameter>b"]}), {"v": "a"}),
    (one({"type": ["string", "object"], "patternProperties": {"^a": TEXT}}), {"v": '{"a":1}'}),
]


@pytest.mark.parametrize("name", TAGS)
@pytest.mark.parametrize(("schema", "said"), MISREAD, ids=lambda one: repr(one)[:50])
def test_what_would_be_read_as_something_else_is_not_allowed(
    name: str, schema: Any, said: dict[str, str]
) -> None:
    assert not allows(name, schema, call(name, **said))


@pytest.mark.parametrize("value", ["a\n", "\na", "\n", "\n\n", "a", ""])
def test_lines_around_a_listed_text_are_told_from_its_own(value: str) -> None:
    schema = one({"enum": [value]})
    source = made("qwen3_coder", schema).grammar
    assert source is not None
    frame = "<tool_call>\n<function=f>\n<parameter=v>{}</parameter>\n</function>\n</tool_call>"
    seen = 0
    for before in ("", "\n"):
        for after in ("", "\n"):
            text = frame.format(before + value + after)
            if match_grammar(source, text)[0]:
                seen += 1
                assert heard("qwen3_coder", schema, text) == {"v": value}
    assert seen


def test_a_text_in_a_section_of_its_own_is_none_either() -> None:
    frame = '<function name="f"><param name="v"><![CDATA[{}]]></param></function>'
    schema = one({"type": ["string", "object"], "required": ["a"], "properties": {"a": NUMBER}})
    assert allows("minicpm5", schema, frame.format("<b>"))
    assert not allows("minicpm5", schema, frame.format("{}"))


def test_a_format_that_says_what_is_text_needs_no_schema_for_it() -> None:
    schema = one({"enum": ["5", 7]})
    assert allows("deepseek_v32", schema, DEEPSEEK.format("5"))
    assert heard("deepseek_v32", schema, DEEPSEEK.format("5")) == {"v": "5"}


def test_marked_texts_that_the_schema_types() -> None:
    frame = "<start_function_call>call:f{{v:<escape>{}<escape>}}<end_function_call>"
    schema = one({"type": ["string", "integer"], "minimum": 10})
    assert allows("functiongemma", schema, frame.format("x"))
    assert not allows("functiongemma", schema, frame.format("5"))


def test_members_of_elements_are_told_apart_too() -> None:
    options = [one(TEXT), members("v c", v=NUMBER, c=NUMBER)]
    schema = members("o", o={"anyOf": options})
    example = find_tools("minimax_m3").example
    assert "]<]minimax[>[" in example
    mark = "]<]minimax[>["

    def element(name: str, inner: str) -> str:
        return f"{mark}<{name}>{inner}{mark}</{name}>"

    def whole(inner: str) -> str:
        return element("tool_call", f'{mark}<invoke name="f">{element("o", inner)}{mark}</invoke>')

    assert allows("minimax_m3", schema, whole(element("v", "x")))
    assert not allows("minimax_m3", schema, whole(element("v", "1")))
    assert allows("minimax_m3", schema, whole(element("v", "1") + element("c", "2")))


# what cannot be kept to is told

TWO = {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}
VERBOSE = {"type": "string", "pattern": "(?x)^a b$"}


@pytest.mark.parametrize("name", [*TAGS, "deepseek_v32", "kimi_k3", "gemma4", "minimax_m3"])
@pytest.mark.parametrize(
    ("schema", "where"),
    [
        (one(TWO), "/properties/v"),
        ({"allOf": [one(TWO)]}, "/allOf/0/properties/v"),
        ({"$ref": "#/$defs/r", "$defs": {"r": one(TWO)}}, "/$defs/r/properties/v"),
        (members(others=TWO), "/additionalProperties"),
        (one(VERBOSE), "/properties/v/pattern"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_a_format_cannot_write_is_told_by_its_place(
    name: str, schema: Any, where: str
) -> None:
    assert f"`{where}`" in refused(name, schema)
    [warning] = made(name, schema, strict=False).warnings
    assert f"`{where}`" in warning


@pytest.mark.parametrize("name", ["hermes_json", "pythonic"])
@pytest.mark.parametrize("schema", [one(TWO), one(VERBOSE)], ids=["two", "verbose"])
def test_what_is_written_as_json_is_kept_to(name: str, schema: Any) -> None:
    assert made(name, schema).warnings == ()


def test_a_required_argument_that_cannot_be_written() -> None:
    said = refused("qwen3_coder", one({"enum": ["</parameter>"]}))
    assert "`/properties/v`" in said
    assert made("qwen3_coder", members(v={"enum": ["</parameter>"]}, w=TEXT)).warnings == ()


# patterns

PATTERNS = [r"(^a|b$)", r"(?i)^yes$", r"^\d+$", r"^\w+$", r"(?i)yes|no", r"^(a|b$)", r"(^a|b)c"]
PATTERNS += [r"(?:^a|(b$))", r"(?i:^a|B$)", r"((?i)^yes$)", r"^[\w-]+$", r"[\D]", r"[^\w]", r"\W"]
PATTERNS += [r"x(a$|b)", r"(^|x)a", r"a($|x)", r"a(?i)b|c", r"(?i)(^yes$|no)", r"\Aab\z", r"a/b"]
PATTERNS += [r"^$", r"", r"(^$)", r"[$^]", r"\$|^a", r"^(a$|b)$", r"a{2}$", r"^(?s).$", r"^[\d-]$"]
TEXTS = ["", "a", "b", "ab", "ba", "xa", "bx", "xax", "yes", "YES", "NO", "1", "٣", "é", "-", "a-b"]
TEXTS += ["a/b", "ac", "bc", "xbc", "\n", "$", "^", "_", "aa", "C", "x1"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_in_every_format(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    quoted = compile_grammar(GrammarSpec(constraint=shape(schema, strict=True))).grammar
    bare = made("gemma4", one(schema)).grammar
    assert quoted is not None
    assert bare is not None
    assert is_supported_pattern(pattern)
    whole = f"start: /{to_full_match(pattern)}/"
    for text in TEXTS:
        fits = match_grammar(quoted, json.dumps(text, ensure_ascii=False))[0]
        assert match_grammar(whole, text)[0] is fits, text
        if text:  # of an empty text it is not asked whether a pattern allows it
            assert match_grammar(bare, GEMMA.format(text))[0] is fits, text


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("(?i)yes|no", ["NO", "Yes"], ["x"]),
        (r"^\d$|(a|^b$)", ["1", "٣", "a", "b"], ["ab", "1a"]),
        ("a(?i)b|c", ["aB", "C"], ["Ab"]),
    ],
)
def test_the_pattern_of_a_whole_answer(pattern: str, right: list[str], wrong: list[str]) -> None:
    source = compile_grammar(
        GrammarSpec(constraint=Constraint(kind="regex", value=pattern, param="regex"))
    ).grammar
    assert source is not None
    assert [text for text in right if not match_grammar(source, text)[0]] == []
    assert [text for text in wrong if match_grammar(source, text)[0]] == []


@pytest.mark.parametrize("name", ["hermes_json", "gemma4", "qwen3_coder"])
def test_the_pattern_of_a_tool_goes_by_unicode_in_every_format(name: str) -> None:
    frames = {
        "hermes_json": '<tool_call>{{"name": "f", "arguments": {{"input": "{}"}}}}</tool_call>',
        "gemma4": '<|tool_call>call:f{{input:<|"|>{}<|"|>}}<tool_call|>',
        "qwen3_coder": TAGS["qwen3_coder"].format("\n<parameter=input>\n{}\n</parameter>"),
    }
    demand = Constraint(kind="regex", value=r"\d[\w]\W", param="tools")
    tool = Tool(
        name="f", takes_free_text=True, input=demand, parameters=members("input", input=TEXT)
    )
    source = compile_grammar(
        GrammarSpec(tools=(tool,), tool_choice="required", tool_format=name)
    ).grammar
    assert source is not None
    assert match_grammar(source, frames[name].format("٣é-"))[0]
    assert not match_grammar(source, frames[name].format("٣-é"))[0]
