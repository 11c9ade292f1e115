"""Values between tags: the parser reads what the grammar allows as a value of the schema.

The parser uses the tool's schema to find the type of a text, and the grammar takes that into
account.
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
from tests.grammar.test_response_format import make_constraint
from tests.support.grammars import make_object

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


def make_tool(schema: Any, *, strict: bool = True) -> Tool:
    return Tool(name="f", parameters=schema, strict=strict)


def compile_tool(name: str, schema: Any, *, strict: bool = True) -> CompiledGrammar:
    return compile_grammar(
        GrammarSpec(
            tools=(make_tool(schema, strict=strict),), tool_choice="required", tool_format=name
        )
    )


def get_rejection(name: str, schema: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        compile_tool(name, schema)
    assert caught.value.param == "tools"
    return caught.value.message


def make_parameter(schema: Any, **more: Any) -> dict[str, Any]:
    return make_object("v", v=schema) | more


def is_allowed(name: str, schema: Any, text: str) -> bool:
    source = compile_tool(name, schema).grammar
    assert source is not None
    return match_grammar(source, text)[0]


def write_call(name: str, **arguments: str) -> str:
    return TAGS[name].format("".join(VALUES[name].format(*pair) for pair in arguments.items()))


def parse_arguments(name: str, schema: Any, text: str) -> Any:
    parser = OutputParser(name, None, tools=(make_tool(schema),), inside=False)
    [(_, arguments)] = fold_spans(parse_pieces(parser, [text])).raw_calls
    return json.loads(arguments)


# allowed values are read back

ROOTS = {"anyOf": [make_parameter(TEXT), make_object("v c", v=NUMBER, c=NUMBER)]}
STRINGS = {"type": ["string", "integer"], "allOf": [TEXT]}
READINGS: list[tuple[Any, dict[str, str], Any]] = [
    (make_object(v={"$ref": "#"}), {"v": '{"v": {}}'}, {"v": {"v": {}}}),
    (make_parameter({"$ref": "#/$defs/a%20b"}, **{"$defs": {"a b": NUMBER}}), {"v": "5"}, {"v": 5}),
    (make_parameter({"$ref": "#/$defs/a~1b"}, **{"$defs": {"a/b": NUMBER}}), {"v": "5"}, {"v": 5}),
    (make_parameter({"enum": [1, 2], "allOf": [{"title": "x"}]}), {"v": "1"}, {"v": 1}),
    (make_parameter(STRINGS), {"v": "1"}, {"v": "1"}),
    (make_parameter({"minimum": 3}), {"v": "5"}, {"v": 5}),
    (make_parameter({"type": ["string", "integer"]}), {"v": "3 apples"}, {"v": "3 apples"}),
    (make_parameter({"type": ["string", "integer"], "minimum": 3}), {"v": "3rd"}, {"v": "3rd"}),
    (make_parameter({"type": ["string", "integer"], "minimum": 3}), {"v": "5"}, {"v": 5}),
    (make_parameter({"type": ["string", "integer"], "minimum": 3}), {"v": " 5 "}, {"v": 5}),
    (make_parameter({"enum": ["table", False]}), {"v": " false"}, {"v": False}),
    (
        make_parameter({"type": ["string", "null"], "enum": ["nil", None]}),
        {"v": "null"},
        {"v": None},
    ),
    (make_parameter({"enum": ["table", False]}), {"v": "table"}, {"v": "table"}),
    (ROOTS, {"v": "2024-01-01"}, {"v": "2024-01-01"}),
    (ROOTS, {"v": "1", "c": "2"}, {"v": 1, "c": 2}),
    (make_parameter({"enum": ["5", 7, "a"]}), {"v": "7"}, {"v": 7}),
    (make_parameter({"enum": ["5", 7, "a"]}), {"v": "a"}, {"v": "a"}),
    (make_parameter({"enum": ["5", "7"]}), {"v": "5"}, {"v": "5"}),
    (
        make_parameter({"enum": ["a</x>", "a</arg_value>b", "a</parameter>b"]}),
        {"v": "a</x>"},
        {"v": "a</x>"},
    ),
    (
        make_parameter({"type": ["string", "object"], "patternProperties": {"^a": TEXT}}),
        {"v": "x"},
        None,
    ),
]


@pytest.mark.parametrize("name", TAGS)
@pytest.mark.parametrize(("schema", "texts", "value"), READINGS, ids=lambda value: repr(value)[:50])
def test_allowed_values_are_read_back(
    name: str, schema: Any, texts: dict[str, str], value: Any
) -> None:
    text = write_call(name, **texts)
    assert is_allowed(name, schema, text)
    parsed = parse_arguments(name, schema, text)
    jsonschema.validate(parsed, schema)
    assert value is None or parsed == value


OBJECT = {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}
MISREAD: list[tuple[Any, dict[str, str]]] = [
    (ROOTS, {"v": "1"}),
    (
        {"anyOf": [make_parameter(TEXT), make_object("v c", v={"type": "null"}, c=NUMBER)]},
        {"v": "null"},
    ),
    (
        {"anyOf": [make_parameter({"enum": ["1", "x"]}), make_object("v c", v=NUMBER, c=NUMBER)]},
        {"v": "1"},
    ),
    ({"anyOf": [make_object(additional=TEXT), make_object("v c", v=NUMBER, c=NUMBER)]}, {"v": "1"}),
    (make_parameter({"enum": ["5", 7]}), {"v": "5"}),
    (make_parameter({"enum": ["true", False]}), {"v": "true"}),
    (
        make_parameter({"anyOf": [{"enum": ["latest", "1"]}, {"type": "integer", "minimum": 2}]}),
        {"v": "1"},
    ),
    (make_parameter({"anyOf": [{"enum": ["{}"]}, OBJECT]}), {"v": "{}"}),
    (make_parameter({"type": ["string", "integer"], "minimum": 3}), {"v": "1"}),
    (make_parameter({"type": ["string", "integer"], "minimum": 3}), {"v": "\x1c1"}),
    (make_parameter({"type": ["string", "number"], "minimum": 3}), {"v": "1e0"}),
    (
        make_parameter({"type": "string", "enum": ["x", "a</arg_value>b", "a</parameter>b"]}),
        {"v": "a"},
    ),
    (
        make_parameter({"type": ["string", "object"], "patternProperties": {"^a": TEXT}}),
        {"v": '{"a":1}'},
    ),
]


@pytest.mark.parametrize("name", TAGS)
@pytest.mark.parametrize(("schema", "texts"), MISREAD, ids=lambda value: repr(value)[:50])
def test_text_that_would_be_misread_is_not_allowed(
    name: str, schema: Any, texts: dict[str, str]
) -> None:
    assert not is_allowed(name, schema, write_call(name, **texts))


@pytest.mark.parametrize("value", ["a\n", "\na", "\n", "\n\n", "a", ""])
def test_newlines_around_a_literal_are_distinguished_from_its_own(value: str) -> None:
    schema = make_parameter({"enum": [value]})
    source = compile_tool("qwen3_coder", schema).grammar
    assert source is not None
    frame = "<tool_call>\n<function=f>\n<parameter=v>{}</parameter>\n</function>\n</tool_call>"
    seen = 0
    for before in ("", "\n"):
        for after in ("", "\n"):
            text = frame.format(before + value + after)
            if match_grammar(source, text)[0]:
                seen += 1
                assert parse_arguments("qwen3_coder", schema, text) == {"v": value}
    assert seen


def test_text_in_cdata_that_would_be_misread_is_not_allowed() -> None:
    frame = '<function name="f"><param name="v"><![CDATA[{}]]></param></function>'
    schema = make_parameter(
        {"type": ["string", "object"], "required": ["a"], "properties": {"a": NUMBER}}
    )
    assert is_allowed("minicpm5", schema, frame.format("<b>"))
    assert not is_allowed("minicpm5", schema, frame.format("{}"))


def test_a_format_that_states_types_needs_no_schema_for_them() -> None:
    schema = make_parameter({"enum": ["5", 7]})
    assert is_allowed("deepseek_v32", schema, DEEPSEEK.format("5"))
    assert parse_arguments("deepseek_v32", schema, DEEPSEEK.format("5")) == {"v": "5"}


def test_strings_between_markers_that_the_schema_types() -> None:
    frame = "<start_function_call>call:f{{v:<escape>{}<escape>}}<end_function_call>"
    schema = make_parameter({"type": ["string", "integer"], "minimum": 10})
    assert is_allowed("functiongemma", schema, frame.format("x"))
    assert not is_allowed("functiongemma", schema, frame.format("5"))


def test_members_of_nested_elements_are_distinguished_too() -> None:
    options = [make_parameter(TEXT), make_object("v c", v=NUMBER, c=NUMBER)]
    schema = make_object("o", o={"anyOf": options})
    example = find_tools("minimax_m3").example
    assert "]<]minimax[>[" in example
    marker = "]<]minimax[>["

    def element(name: str, inner: str) -> str:
        return f"{marker}<{name}>{inner}{marker}</{name}>"

    def whole(inner: str) -> str:
        return element(
            "tool_call", f'{marker}<invoke name="f">{element("o", inner)}{marker}</invoke>'
        )

    assert is_allowed("minimax_m3", schema, whole(element("v", "x")))
    assert not is_allowed("minimax_m3", schema, whole(element("v", "1")))
    assert is_allowed("minimax_m3", schema, whole(element("v", "1") + element("c", "2")))


# schemas that cannot be enforced are reported

TWO = {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}
VERBOSE = {"type": "string", "pattern": "(?x)^a b$"}


@pytest.mark.parametrize("name", [*TAGS, "deepseek_v32", "kimi_k3", "gemma4", "minimax_m3"])
@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (make_parameter(TWO), "/properties/v"),
        ({"allOf": [make_parameter(TWO)]}, "/allOf/0/properties/v"),
        ({"$ref": "#/$defs/r", "$defs": {"r": make_parameter(TWO)}}, "/$defs/r/properties/v"),
        (make_object(additional=TWO), "/additionalProperties"),
        (make_parameter(VERBOSE), "/properties/v/pattern"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_schemas_that_a_format_cannot_write_are_reported_with_a_pointer(
    name: str, schema: Any, pointer: str
) -> None:
    assert f"`{pointer}`" in get_rejection(name, schema)
    [warning] = compile_tool(name, schema, strict=False).warnings
    assert f"`{pointer}`" in warning


@pytest.mark.parametrize("name", ["hermes_json", "pythonic"])
@pytest.mark.parametrize(
    "schema", [make_parameter(TWO), make_parameter(VERBOSE)], ids=["two", "verbose"]
)
def test_schemas_are_fully_enforced_in_json(name: str, schema: Any) -> None:
    assert compile_tool(name, schema).warnings == ()


def test_a_required_argument_that_cannot_be_written() -> None:
    message = get_rejection("qwen3_coder", make_parameter({"enum": ["</parameter>"]}))
    assert "`/properties/v`" in message
    assert (
        compile_tool("qwen3_coder", make_object(v={"enum": ["</parameter>"]}, w=TEXT)).warnings
        == ()
    )


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
    quoted = compile_grammar(GrammarSpec(constraint=make_constraint(schema, strict=True))).grammar
    bare = compile_tool("gemma4", make_parameter(schema)).grammar
    assert quoted is not None
    assert bare is not None
    assert is_supported_pattern(pattern)
    whole = f"start: /{to_full_match(pattern)}/"
    for text in TEXTS:
        fits = match_grammar(quoted, json.dumps(text, ensure_ascii=False))[0]
        assert match_grammar(whole, text)[0] is fits, text
        if text:  # the pattern of an empty text is not checked
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
def test_the_regex_of_a_tool_uses_unicode_classes_in_every_format(name: str) -> None:
    frames = {
        "hermes_json": '<tool_call>{{"name": "f", "arguments": {{"input": "{}"}}}}</tool_call>',
        "gemma4": '<|tool_call>call:f{{input:<|"|>{}<|"|>}}<tool_call|>',
        "qwen3_coder": TAGS["qwen3_coder"].format("\n<parameter=input>\n{}\n</parameter>"),
    }
    constraint = Constraint(kind="regex", value=r"\d[\w]\W", param="tools")
    tool = Tool(
        name="f",
        takes_free_text=True,
        input=constraint,
        parameters=make_object("input", input=TEXT),
    )
    source = compile_grammar(
        GrammarSpec(tools=(tool,), tool_choice="required", tool_format=name)
    ).grammar
    assert source is not None
    assert match_grammar(source, frames[name].format("٣é-"))[0]
    assert not match_grammar(source, frames[name].format("٣-é"))[0]
