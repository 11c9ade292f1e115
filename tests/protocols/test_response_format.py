"""Constraints and tool choices: every form is decoded, and invalid ones are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.events import Completion, Delta, Finish
from dragoman.protocols import chat, completions
from dragoman.protocols.chat import ChatEncoder
from dragoman.protocols.dialect import AnswerInfo
from dragoman.types import Chat, Constraint, Request

ANSWER = AnswerInfo("m", 1, 1)

SCHEMA = {"type": "object", "properties": {"é": {"$ref": "#/$defs/a"}}, "$defs": {"a": True}}
GBNF = 'root ::= "a"'
DIGITS = "[0-9]+"
JSON_OBJECT = {"type": "json_object"}
STRICT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
LOOSE = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": False}}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]


def decode_chat(**fields: Any) -> Request:
    messages = [{"role": "user", "content": "hi"}]
    return chat.decode_request(json.dumps({"model": "m", "messages": messages} | fields).encode())


def decode_completion(**fields: Any) -> Request:
    return completions.decode_request(json.dumps({"model": "m", "prompt": "hi"} | fields).encode())


def decode_chat_prompt(**fields: Any) -> Chat:
    chat_prompt = decode_chat(**fields).prompts[0]
    assert isinstance(chat_prompt, Chat)
    return chat_prompt


def get_error(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode_chat(**fields)
    assert caught.value.status == 400
    for internal in ("Struct", "$", "msgspec"):
        assert internal not in caught.value.message
    return caught.value


def json_constraint(value: Any, param: str, strict: bool | None = None) -> Constraint:
    allows_tool_calls = param.startswith("response_format")
    return Constraint(
        kind="json", value=value, param=param, strict=strict, allows_tool_calls=allows_tool_calls
    )


def make_schema_format(**json_schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": json_schema}


SCHEMA_PATH = "response_format.json_schema.schema"
RESPONSE_FORMATS: list[tuple[Any, Constraint | None]] = [
    (None, None),
    ({"type": "text"}, None),
    ({"type": "text", "json_schema": None}, None),
    (JSON_OBJECT, json_constraint(None, "response_format")),
    (JSON_OBJECT | {"schema": SCHEMA}, json_constraint(SCHEMA, "response_format.schema")),
    (STRICT, json_constraint(SCHEMA, SCHEMA_PATH, strict=True)),
    (LOOSE, json_constraint(SCHEMA, SCHEMA_PATH, strict=False)),
    (make_schema_format(name="n", schema=SCHEMA), json_constraint(SCHEMA, SCHEMA_PATH)),
    (
        make_schema_format(name="n", schema=SCHEMA, strict=None),
        json_constraint(SCHEMA, SCHEMA_PATH),
    ),
    (
        make_schema_format(name="A-z_0" * 12, schema={}, description="d"),
        json_constraint({}, SCHEMA_PATH),
    ),
    (make_schema_format(name="n", schema=True), json_constraint(True, SCHEMA_PATH)),
    (make_schema_format(name="n", schema=False), json_constraint(False, SCHEMA_PATH)),
    (
        make_schema_format(name="n", schema=SCHEMA) | {"strict": True},
        json_constraint(SCHEMA, SCHEMA_PATH, strict=True),
    ),
    ({"type": "json_schema", "schema": SCHEMA}, json_constraint(SCHEMA, "response_format.schema")),
    (
        {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
        json_constraint(SCHEMA, "response_format.schema", strict=True),
    ),
]


@pytest.mark.parametrize(("response_format", "constraint"), RESPONSE_FORMATS)
def test_a_response_format_is_decoded(response_format: Any, constraint: Constraint | None) -> None:
    for request in (
        decode_chat(response_format=response_format),
        decode_completion(response_format=response_format),
    ):
        assert request.constraint == constraint
        assert request.warnings == ()


BAD_FORMATS = [
    ("json_object", "response_format"),
    ({}, "response_format.type"),
    ({"type": "yaml"}, "response_format.type"),
    ({"type": "structural_tag", "structures": []}, "response_format.type"),
    ({"type": "json_schema"}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": None}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": "{}"}, "response_format.json_schema"),
    (make_schema_format(schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name="", schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name="x" * 65, schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name="a b", schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name="n\n", schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name="ñ", schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name=5, schema=SCHEMA), "response_format.json_schema.name"),
    (make_schema_format(name="n"), "response_format.json_schema.schema"),
    (make_schema_format(name="n", schema=None), "response_format.json_schema.schema"),
    (make_schema_format(name="n", schema="{}"), "response_format.json_schema.schema"),
    (make_schema_format(name="n", schema=[]), "response_format.json_schema.schema"),
    (make_schema_format(name="n", schema={}, strict="yes"), "response_format.json_schema.strict"),
    (make_schema_format(name="n", schema={}) | {"schema": {}}, "response_format.schema"),
    ({"type": "json_schema", "schema": {}, "name": "a b"}, "response_format.name"),
    ({"type": "text", "schema": {}}, "response_format.schema"),
    ({"type": "text"} | {"json_schema": STRICT["json_schema"]}, "response_format.json_schema"),
    (JSON_OBJECT | {"json_schema": STRICT["json_schema"]}, "response_format.json_schema"),
]


@pytest.mark.parametrize(("response_format", "param"), BAD_FORMATS)
def test_an_invalid_response_format_is_named(response_format: Any, param: str) -> None:
    assert get_error(response_format=response_format).param == param


def grammar_constraint(value: str, param: str, language: Any = None) -> Constraint:
    return Constraint(kind="grammar", value=value, param=param, language=language)


def structured_outputs(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


SCHEMA_TEXT = json.dumps(SCHEMA)
EXPLICIT: list[tuple[dict[str, Any], Constraint]] = [
    ({"grammar": GBNF}, grammar_constraint(GBNF, "grammar")),
    ({"grammar": {"grammar": GBNF}}, grammar_constraint(GBNF, "grammar.grammar")),
    (
        {"grammar": {"type": "gbnf", "value": GBNF}},
        grammar_constraint(GBNF, "grammar.value", "gbnf"),
    ),
    (
        {"grammar": {"type": "lark", "grammar": "x"}},
        grammar_constraint("x", "grammar.grammar", "lark"),
    ),
    (
        {"grammar": {"type": "regex", "value": DIGITS}},
        Constraint(kind="regex", value=DIGITS, param="grammar.value"),
    ),
    (
        {"grammar": {"type": "json_schema", "value": SCHEMA}},
        json_constraint(SCHEMA, "grammar.value"),
    ),
    ({"grammar": {"type": "json_schema", "value": False}}, json_constraint(False, "grammar.value")),
    (
        {"grammar": {"type": "json", "grammar": SCHEMA_TEXT}},
        json_constraint(SCHEMA, "grammar.grammar"),
    ),
    ({"regex": DIGITS}, Constraint(kind="regex", value=DIGITS, param="regex")),
    ({"choice": ["a", "é"]}, Constraint(kind="choice", value=["a", "é"], param="choice")),
    ({"choice": ["a"] * 1000}, Constraint(kind="choice", value=["a"] * 1000, param="choice")),
    (
        {"json_schema": SCHEMA},
        replace(json_constraint(SCHEMA, "json_schema"), closes_objects=True),
    ),
    (
        structured_outputs(json=SCHEMA, disable_additional_properties=True),
        replace(json_constraint(SCHEMA, "structured_outputs.json"), closes_objects=True),
    ),
    (structured_outputs(json=SCHEMA), json_constraint(SCHEMA, "structured_outputs.json")),
    (structured_outputs(json=SCHEMA_TEXT), json_constraint(SCHEMA, "structured_outputs.json")),
    (structured_outputs(json="true"), json_constraint(True, "structured_outputs.json")),
    (structured_outputs(json_object=True), json_constraint(None, "structured_outputs.json_object")),
    (
        structured_outputs(json=SCHEMA, json_object=False),
        json_constraint(SCHEMA, "structured_outputs.json"),
    ),
    (
        structured_outputs(
            regex=DIGITS, json=None, whitespace_pattern=None, disable_any_whitespace=False
        ),
        Constraint(kind="regex", value=DIGITS, param="structured_outputs.regex"),
    ),
    (
        structured_outputs(choice=["a"]),
        Constraint(kind="choice", value=["a"], param="structured_outputs.choice"),
    ),
    (
        structured_outputs(grammar=GBNF, backend=None),
        grammar_constraint(GBNF, "structured_outputs.grammar"),
    ),
    ({"guided_json": SCHEMA}, json_constraint(SCHEMA, "guided_json")),
    (
        {"guided_json": SCHEMA_TEXT, "guided_decoding_backend": None},
        json_constraint(SCHEMA, "guided_json"),
    ),
    ({"guided_regex": DIGITS}, Constraint(kind="regex", value=DIGITS, param="guided_regex")),
    ({"guided_choice": ["a"]}, Constraint(kind="choice", value=["a"], param="guided_choice")),
    ({"guided_grammar": GBNF}, grammar_constraint(GBNF, "guided_grammar")),
]


@pytest.mark.parametrize(("fields", "constraint"), EXPLICIT)
def test_every_explicit_constraint_is_decoded_in_both_apis(
    fields: dict[str, Any], constraint: Constraint
) -> None:
    for request in (decode_chat(**fields), decode_completion(**fields)):
        assert request.constraint == constraint
        assert request.warnings == ()


def test_null_is_the_same_as_absent() -> None:
    nulls = dict.fromkeys(name for fields, _ in EXPLICIT for name in fields)
    assert (
        decode_chat(**nulls, response_format=None, tool_choice=None, parallel_tool_calls=None)
        == decode_chat()
    )
    assert decode_completion(**nulls) == decode_completion()


BAD_EXPLICIT = [
    ({"grammar": ""}, "grammar"),
    ({"grammar": 5}, "grammar"),
    ({"grammar": {}}, "grammar.grammar"),
    ({"grammar": {"type": "gbnf"}}, "grammar.grammar"),
    ({"grammar": {"type": "peg", "value": "x"}}, "grammar.type"),
    ({"grammar": {"type": "gbnf", "value": SCHEMA}}, "grammar.value"),
    ({"grammar": {"type": "lark", "value": ""}}, "grammar.value"),
    ({"grammar": {"type": "regex", "grammar": ["a"]}}, "grammar.grammar"),
    ({"grammar": {"type": "json_schema", "value": "{"}}, "grammar.value"),
    ({"grammar": {"type": "json_schema", "value": [1]}}, "grammar.value"),
    ({"grammar": {"grammar": "x", "value": "y"}}, "grammar.value"),
    ({"grammar": {"grammar": "x", "start": "y"}}, "grammar"),
    ({"regex": ""}, "regex"),
    ({"regex": ["a"]}, "regex"),
    ({"regex": "x" * 1_000_001}, "regex"),
    ({"choice": []}, "choice"),
    ({"choice": "a"}, "choice"),
    ({"choice": ["a", ""]}, "choice[1]"),
    ({"choice": [5]}, "choice[0]"),
    ({"choice": ["a"] * 1001}, "choice"),
    ({"json_schema": 5}, "json_schema"),
    (structured_outputs(), "structured_outputs"),
    (structured_outputs(json=None), "structured_outputs"),
    (structured_outputs(json_object=False), "structured_outputs"),
    (structured_outputs(json="{"), "structured_outputs.json"),
    (structured_outputs(json="[" * 100_000), "structured_outputs.json"),
    (structured_outputs(json="[]"), "structured_outputs.json"),
    (structured_outputs(json="null"), "structured_outputs.json"),
    (structured_outputs(choice=[]), "structured_outputs.choice"),
    (structured_outputs(jsn=SCHEMA), "structured_outputs"),
    (
        structured_outputs(json=SCHEMA, whitespace_pattern="x"),
        "structured_outputs.whitespace_pattern",
    ),
    (
        structured_outputs(json=SCHEMA, disable_any_whitespace=True),
        "structured_outputs.disable_any_whitespace",
    ),
    (
        structured_outputs(json=SCHEMA, disable_additional_properties="yes"),
        "structured_outputs.disable_additional_properties",
    ),
    (
        structured_outputs(regex="a", disable_additional_properties=True),
        "structured_outputs.disable_additional_properties",
    ),
    (structured_outputs(json=SCHEMA, disable_fallback=True), "structured_outputs.disable_fallback"),
    (structured_outputs(json=SCHEMA, backend="xgrammar"), "structured_outputs.backend"),
    (structured_outputs(structural_tag="{}"), "structured_outputs.structural_tag"),
    ({"structural_tag": "{}"}, "structural_tag"),
    ({"guided_json": "nonsense"}, "guided_json"),
    ({"guided_json": []}, "guided_json"),
    ({"guided_json": {}, "guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"guided_json": {}, "guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_EXPLICIT)
def test_unsupported_constraints_are_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    assert get_error(**fields).param == param
    with pytest.raises(BadRequest) as caught:
        decode_completion(**fields)
    assert caught.value.param == param


FORCED_TOOL = {"type": "function", "function": {"name": "g"}}
ONE_OF = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
EXCLUSIVE = [
    ({"grammar": GBNF, "regex": DIGITS}, "grammar", "regex"),
    ({"choice": ["a"], "guided_choice": ["a"]}, "choice", "guided_choice"),
    ({"regex": "a", **structured_outputs(json={})}, "regex", "structured_outputs.json"),
    (structured_outputs(json={}, regex="a"), "structured_outputs.json", "structured_outputs.regex"),
    (
        structured_outputs(choice=["a"], json_object=True),
        "structured_outputs.choice",
        "structured_outputs.json_object",
    ),
    ({"json_schema": {}, "guided_json": {}}, "json_schema", "guided_json"),
    ({"grammar": GBNF, "response_format": STRICT}, "grammar", "response_format"),
    (
        structured_outputs(json={}) | {"response_format": STRICT},
        "structured_outputs.json",
        "response_format",
    ),
    ({"grammar": GBNF, "tools": TOOLS, "tool_choice": "required"}, "grammar", "tool_choice"),
    ({"choice": ["a"], "tools": TOOLS, "tool_choice": FORCED_TOOL}, "choice", "tool_choice"),
    ({"guided_regex": "a", "tools": TOOLS, "tool_choice": ONE_OF}, "guided_regex", "tool_choice"),
]


@pytest.mark.parametrize(("fields", "first", "second"), EXCLUSIVE)
def test_exclusive_constraints_are_rejected_by_both_names(
    fields: dict[str, Any], first: str, second: str
) -> None:
    error = get_error(**fields)
    assert error.param == second
    assert f"`{first}`" in error.message
    assert f"`{second}`" in error.message


@pytest.mark.parametrize(
    "response_format", [JSON_OBJECT, LOOSE, {"type": "json_schema", "schema": SCHEMA}]
)
@pytest.mark.parametrize(("fields", "constraint"), EXPLICIT)
def test_an_explicit_constraint_replaces_a_format_that_is_not_strict(
    fields: dict[str, Any], constraint: Constraint, response_format: Any
) -> None:
    request = decode_chat(**fields, response_format=response_format)
    assert request.constraint == constraint
    (warning,) = request.warnings
    assert "`response_format`" in warning
    assert f"`{constraint.param}`" in warning


@pytest.mark.parametrize("tool_choice", ["auto", "none", None, ONE_OF | {"mode": "auto"}])
def test_an_explicit_constraint_allows_optional_tools(tool_choice: Any) -> None:
    request = decode_chat(grammar=GBNF, tools=TOOLS, tool_choice=tool_choice)
    assert request.constraint == grammar_constraint(GBNF, "grammar")
    assert request.warnings == ()
    assert isinstance(request.prompts[0], Chat)
    assert len(request.prompts[0].tools) == 3


def make_allowed_tools(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


# tool_choice -> mode, allowed tools, whether it forces one tool
CHOICES: list[tuple[Any, str, tuple[str, ...] | None, bool]] = [
    (None, "auto", None, False),
    ("auto", "auto", None, False),
    ("none", "none", None, False),
    ("required", "required", None, False),
    (FORCED_TOOL, "required", ("g",), True),
    ({"type": "function", "name": "h"}, "required", ("h",), True),
    (make_allowed_tools("h", "f"), "auto", ("f", "h"), False),
    (make_allowed_tools("g", "g"), "auto", ("g",), False),
    (make_allowed_tools("g", mode="required"), "required", ("g",), False),
    (ONE_OF, "required", ("g",), False),
    (ONE_OF | {"mode": "auto"}, "auto", ("g",), False),
]


@pytest.mark.parametrize("parallel", [None, True, False])
@pytest.mark.parametrize(("tool_choice", "mode", "names", "forces_named_tool"), CHOICES)
def test_a_tool_choice_is_decoded(
    tool_choice: Any,
    mode: str,
    names: tuple[str, ...] | None,
    forces_named_tool: bool,
    parallel: bool | None,
) -> None:
    chat_prompt = decode_chat_prompt(
        tools=TOOLS, tool_choice=tool_choice, parallel_tool_calls=parallel
    )
    assert (chat_prompt.tool_choice, chat_prompt.allowed_tools, chat_prompt.forces_named_tool) == (
        mode,
        names,
        forces_named_tool,
    )
    assert chat_prompt.parallel_tool_calls == (parallel is not False and not forces_named_tool)
    assert len(chat_prompt.tools) == 3


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("tool_choice", [None, "auto", "none"])
def test_a_choice_that_forces_nothing_needs_no_tools(tools: Any, tool_choice: Any) -> None:
    chat_prompt = decode_chat_prompt(
        tools=tools, tool_choice=tool_choice, parallel_tool_calls=False
    )
    assert chat_prompt.tools == ()
    assert chat_prompt.allowed_tools is None


BAD_CHOICES = [
    ("required", None, "tool_choice"),
    ("required", [], "tool_choice"),
    (FORCED_TOOL, None, "tool_choice"),
    (FORCED_TOOL, [], "tool_choice"),
    (FORCED_TOOL, TOOLS[:1], "tool_choice"),
    ("always", TOOLS, "tool_choice"),
    ("", TOOLS, "tool_choice"),
    ("f", TOOLS, "tool_choice"),
    (5, TOOLS, "tool_choice"),
    (["f"], TOOLS, "tool_choice"),
    ({}, TOOLS, "tool_choice.type"),
    ({"type": "function"}, TOOLS, "tool_choice"),
    ({"type": "function", "function": {}}, TOOLS, "tool_choice.function.name"),
    ({"type": "custom", "custom": {"name": "f"}}, TOOLS, "tool_choice"),
    (make_allowed_tools("g"), None, "tool_choice.allowed_tools.tools[0]"),
    (make_allowed_tools("f", "nobody"), TOOLS, "tool_choice.allowed_tools.tools[1]"),
    (make_allowed_tools(), TOOLS, "tool_choice.allowed_tools.tools"),
    (make_allowed_tools("f", mode="none"), TOOLS, "tool_choice.allowed_tools.mode"),
    ({"type": "allowed_tools"}, TOOLS, "tool_choice.tools"),
    ({"type": "allowed_tools", "allowed_tools": {}}, TOOLS, "tool_choice.allowed_tools.mode"),
    (ONE_OF | {"tools": []}, TOOLS, "tool_choice.tools"),
    (ONE_OF | {"tools": [{"type": "function"}]}, TOOLS, "tool_choice.tools[0]"),
    (ONE_OF | {"tools": [{"type": "custom", "name": "f"}]}, TOOLS, "tool_choice.tools[0]"),
    (ONE_OF | {"mode": None}, TOOLS, "tool_choice.mode"),
]


@pytest.mark.parametrize(("tool_choice", "tools", "param"), BAD_CHOICES)
def test_an_invalid_tool_choice_is_named(tool_choice: Any, tools: Any, param: str) -> None:
    assert get_error(tools=tools, tool_choice=tool_choice).param == param


def test_a_tool_keeps_its_schema_and_strict() -> None:
    tools: list[tuple[Any, bool | None]] = [({}, True), (SCHEMA, False), (None, None)]
    functions = [
        {"name": f"f{i}", "parameters": parameters, "strict": strict}
        for i, (parameters, strict) in enumerate(tools)
    ]
    chat_prompt = decode_chat_prompt(
        tools=[{"type": "function", "function": function} for function in functions]
    )
    assert [(tool.parameters, tool.strict) for tool in chat_prompt.tools] == tools


@pytest.mark.parametrize("parameters", [True, "{}", [], 5])
def test_parameters_that_are_not_an_object_are_named(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert get_error(tools=tools).param == "tools[0].function.parameters"


FINISHES: list[tuple[Any, Finish, str]] = [
    (FORCED_TOOL, "tool_calls", "stop"),
    (FORCED_TOOL, "length", "length"),
    ("required", "tool_calls", "tool_calls"),
    ("auto", "tool_calls", "tool_calls"),
    ("auto", "stop", "stop"),
    (ONE_OF, "tool_calls", "tool_calls"),
]


@pytest.mark.parametrize(("tool_choice", "finish", "expected"), FINISHES)
def test_a_call_to_a_forced_tool_ends_with_stop(
    tool_choice: Any, finish: Finish, expected: str
) -> None:
    request = decode_chat(tools=TOOLS, tool_choice=tool_choice, parallel_tool_calls=False)
    deltas = [
        Delta(choice=0, channel="tool_name", text="g", call=0),
        Delta(choice=0, channel="tool_args", text="{}", call=0),
        Delta(choice=0, finish=finish),
    ]
    encoder = ChatEncoder(request, ANSWER)
    frames = [frame for delta in deltas for frame in encoder.encode_delta(delta)]
    last = json.loads(frames[-1].removeprefix(b"data: "))
    assert last["choices"][0]["finish_reason"] == expected
    completion = Completion()
    for delta in deltas:
        completion.add(delta)
    (choice,) = json.loads(ChatEncoder(request, ANSWER).encode_whole(completion))["choices"]
    assert choice["finish_reason"] == expected
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "g", "arguments": "{}"}
