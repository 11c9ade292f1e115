"""What an answer must look like and call: every spelling arrives, what cannot be is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.events import Completion, Delta, Finish
from dragoman.protocols import chat, completions
from dragoman.protocols.chat import ChatEncoder
from dragoman.types import Chat, Constraint, Request

SCHEMA = {"type": "object", "properties": {"é": {"$ref": "#/$defs/a"}}, "$defs": {"a": True}}
GBNF = 'root ::= "a"'
DIGITS = "[0-9]+"
JSON_OBJECT = {"type": "json_object"}
STRICT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
LOOSE = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": False}}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]


def ask(**fields: Any) -> Request:
    messages = [{"role": "user", "content": "hi"}]
    return chat.decode_request(json.dumps({"model": "m", "messages": messages} | fields).encode())


def complete(**fields: Any) -> Request:
    return completions.decode_request(json.dumps({"model": "m", "prompt": "hi"} | fields).encode())


def talk(**fields: Any) -> Chat:
    found = ask(**fields).prompts[0]
    assert isinstance(found, Chat)
    return found


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as refusal:
        ask(**fields)
    assert refusal.value.status == 400
    for internal in ("Struct", "$", "msgspec"):
        assert internal not in refusal.value.message
    return refusal.value


def schema(value: Any, param: str, strict: bool | None = None) -> Constraint:
    beside = param.startswith("response_format")
    return Constraint(
        kind="json", value=value, param=param, strict=strict, allows_tool_calls=beside
    )


def formatted(**json_schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": json_schema}


INSIDE = "response_format.json_schema.schema"
RESPONSE_FORMATS: list[tuple[Any, Constraint | None]] = [
    (None, None),
    ({"type": "text"}, None),
    ({"type": "text", "json_schema": None}, None),
    (JSON_OBJECT, schema(None, "response_format")),
    (JSON_OBJECT | {"schema": SCHEMA}, schema(SCHEMA, "response_format.schema")),
    (STRICT, schema(SCHEMA, INSIDE, strict=True)),
    (LOOSE, schema(SCHEMA, INSIDE, strict=False)),
    (formatted(name="n", schema=SCHEMA), schema(SCHEMA, INSIDE)),
    (formatted(name="n", schema=SCHEMA, strict=None), schema(SCHEMA, INSIDE)),
    (formatted(name="A-z_0" * 12, schema={}, description="d"), schema({}, INSIDE)),
    (formatted(name="n", schema=True), schema(True, INSIDE)),
    (formatted(name="n", schema=False), schema(False, INSIDE)),
    (formatted(name="n", schema=SCHEMA) | {"strict": True}, schema(SCHEMA, INSIDE, strict=True)),
    ({"type": "json_schema", "schema": SCHEMA}, schema(SCHEMA, "response_format.schema")),
    (
        {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
        schema(SCHEMA, "response_format.schema", strict=True),
    ),
]


@pytest.mark.parametrize(("said", "shape"), RESPONSE_FORMATS)
def test_a_response_format_arrives(said: Any, shape: Constraint | None) -> None:
    for request in (ask(response_format=said), complete(response_format=said)):
        assert request.constraint == shape
        assert request.warnings == ()


BAD_FORMATS = [
    ("json_object", "response_format"),
    ({}, "response_format.type"),
    ({"type": "yaml"}, "response_format.type"),
    ({"type": "structural_tag", "structures": []}, "response_format.type"),
    ({"type": "json_schema"}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": None}, "response_format.json_schema"),
    ({"type": "json_schema", "json_schema": "{}"}, "response_format.json_schema"),
    (formatted(schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name="", schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name="x" * 65, schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name="a b", schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name="n\n", schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name="ñ", schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name=5, schema=SCHEMA), "response_format.json_schema.name"),
    (formatted(name="n"), "response_format.json_schema.schema"),
    (formatted(name="n", schema=None), "response_format.json_schema.schema"),
    (formatted(name="n", schema="{}"), "response_format.json_schema.schema"),
    (formatted(name="n", schema=[]), "response_format.json_schema.schema"),
    (formatted(name="n", schema={}, strict="yes"), "response_format.json_schema.strict"),
    (formatted(name="n", schema={}) | {"schema": {}}, "response_format.schema"),
    ({"type": "json_schema", "schema": {}, "name": "a b"}, "response_format.name"),
    ({"type": "text", "schema": {}}, "response_format.schema"),
    ({"type": "text"} | {"json_schema": STRICT["json_schema"]}, "response_format.json_schema"),
    (JSON_OBJECT | {"json_schema": STRICT["json_schema"]}, "response_format.json_schema"),
]


@pytest.mark.parametrize(("said", "param"), BAD_FORMATS)
def test_a_wrong_response_format_is_named(said: Any, param: str) -> None:
    assert refused(response_format=said).param == param


def grammar(value: str, param: str, language: Any = None) -> Constraint:
    return Constraint(kind="grammar", value=value, param=param, language=language)


def nested(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


TEXT = json.dumps(SCHEMA)
EXPLICIT: list[tuple[dict[str, Any], Constraint]] = [
    ({"grammar": GBNF}, grammar(GBNF, "grammar")),
    ({"grammar": {"grammar": GBNF}}, grammar(GBNF, "grammar.grammar")),
    ({"grammar": {"type": "gbnf", "value": GBNF}}, grammar(GBNF, "grammar.value", "gbnf")),
    ({"grammar": {"type": "lark", "grammar": "x"}}, grammar("x", "grammar.grammar", "lark")),
    (
        {"grammar": {"type": "regex", "value": DIGITS}},
        Constraint(kind="regex", value=DIGITS, param="grammar.value"),
    ),
    ({"grammar": {"type": "json_schema", "value": SCHEMA}}, schema(SCHEMA, "grammar.value")),
    ({"grammar": {"type": "json_schema", "value": False}}, schema(False, "grammar.value")),
    ({"grammar": {"type": "json", "grammar": TEXT}}, schema(SCHEMA, "grammar.grammar")),
    ({"regex": DIGITS}, Constraint(kind="regex", value=DIGITS, param="regex")),
    ({"choice": ["a", "é"]}, Constraint(kind="choice", value=["a", "é"], param="choice")),
    ({"choice": ["a"] * 1000}, Constraint(kind="choice", value=["a"] * 1000, param="choice")),
    ({"json_schema": SCHEMA}, schema(SCHEMA, "json_schema")),
    (nested(json=SCHEMA), schema(SCHEMA, "structured_outputs.json")),
    (nested(json=TEXT), schema(SCHEMA, "structured_outputs.json")),
    (nested(json="true"), schema(True, "structured_outputs.json")),
    (nested(json_object=True), schema(None, "structured_outputs.json_object")),
    (nested(json=SCHEMA, json_object=False), schema(SCHEMA, "structured_outputs.json")),
    (
        nested(regex=DIGITS, json=None, whitespace_pattern=None, disable_any_whitespace=False),
        Constraint(kind="regex", value=DIGITS, param="structured_outputs.regex"),
    ),
    (
        nested(choice=["a"]),
        Constraint(kind="choice", value=["a"], param="structured_outputs.choice"),
    ),
    (nested(grammar=GBNF, backend=None), grammar(GBNF, "structured_outputs.grammar")),
    ({"guided_json": SCHEMA}, schema(SCHEMA, "guided_json")),
    ({"guided_json": TEXT, "guided_decoding_backend": None}, schema(SCHEMA, "guided_json")),
    ({"guided_regex": DIGITS}, Constraint(kind="regex", value=DIGITS, param="guided_regex")),
    ({"guided_choice": ["a"]}, Constraint(kind="choice", value=["a"], param="guided_choice")),
    ({"guided_grammar": GBNF}, grammar(GBNF, "guided_grammar")),
]


@pytest.mark.parametrize(("fields", "shape"), EXPLICIT)
def test_every_explicit_spelling_arrives_in_both_dialects(
    fields: dict[str, Any], shape: Constraint
) -> None:
    for request in (ask(**fields), complete(**fields)):
        assert request.constraint == shape
        assert request.warnings == ()


def test_null_says_nothing() -> None:
    nulls = dict.fromkeys(name for fields, _ in EXPLICIT for name in fields)
    assert ask(**nulls, response_format=None, tool_choice=None, parallel_tool_calls=None) == ask()
    assert complete(**nulls) == complete()


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
    (nested(), "structured_outputs"),
    (nested(json=None), "structured_outputs"),
    (nested(json_object=False), "structured_outputs"),
    (nested(json="{"), "structured_outputs.json"),
    (nested(json="[" * 100_000), "structured_outputs.json"),
    (nested(json="[]"), "structured_outputs.json"),
    (nested(json="null"), "structured_outputs.json"),
    (nested(choice=[]), "structured_outputs.choice"),
    (nested(jsn=SCHEMA), "structured_outputs"),
    (nested(json=SCHEMA, whitespace_pattern="x"), "structured_outputs.whitespace_pattern"),
    (nested(json=SCHEMA, disable_any_whitespace=True), "structured_outputs.disable_any_whitespace"),
    (
        nested(json=SCHEMA, disable_additional_properties=True),
        "structured_outputs.disable_additional_properties",
    ),
    (nested(json=SCHEMA, disable_fallback=True), "structured_outputs.disable_fallback"),
    (nested(json=SCHEMA, backend="xgrammar"), "structured_outputs.backend"),
    (nested(structural_tag="{}"), "structured_outputs.structural_tag"),
    ({"structural_tag": "{}"}, "structural_tag"),
    ({"guided_json": "nonsense"}, "guided_json"),
    ({"guided_json": []}, "guided_json"),
    ({"guided_json": {}, "guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"guided_json": {}, "guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_EXPLICIT)
def test_what_cannot_be_kept_to_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param
    with pytest.raises(BadRequest) as refusal:
        complete(**fields)
    assert refusal.value.param == param


NAMED = {"type": "function", "function": {"name": "g"}}
ONE_OF = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
EXCLUDING = [
    ({"grammar": GBNF, "regex": DIGITS}, "grammar", "regex"),
    ({"choice": ["a"], "guided_choice": ["a"]}, "choice", "guided_choice"),
    ({"regex": "a", **nested(json={})}, "regex", "structured_outputs.json"),
    (nested(json={}, regex="a"), "structured_outputs.json", "structured_outputs.regex"),
    (
        nested(choice=["a"], json_object=True),
        "structured_outputs.choice",
        "structured_outputs.json_object",
    ),
    ({"json_schema": {}, "guided_json": {}}, "json_schema", "guided_json"),
    ({"grammar": GBNF, "response_format": STRICT}, "grammar", "response_format"),
    (nested(json={}) | {"response_format": STRICT}, "structured_outputs.json", "response_format"),
    ({"grammar": GBNF, "tools": TOOLS, "tool_choice": "required"}, "grammar", "tool_choice"),
    ({"choice": ["a"], "tools": TOOLS, "tool_choice": NAMED}, "choice", "tool_choice"),
    ({"guided_regex": "a", "tools": TOOLS, "tool_choice": ONE_OF}, "guided_regex", "tool_choice"),
]


@pytest.mark.parametrize(("fields", "one", "other"), EXCLUDING)
def test_two_that_exclude_each_other_are_refused_by_both_names(
    fields: dict[str, Any], one: str, other: str
) -> None:
    refusal = refused(**fields)
    assert refusal.param == other
    assert f"`{one}`" in refusal.message
    assert f"`{other}`" in refusal.message


@pytest.mark.parametrize("wanted", [JSON_OBJECT, LOOSE, {"type": "json_schema", "schema": SCHEMA}])
@pytest.mark.parametrize(("fields", "shape"), EXPLICIT)
def test_an_explicit_shape_wins_over_a_loose_format_and_says_so(
    fields: dict[str, Any], shape: Constraint, wanted: Any
) -> None:
    request = ask(**fields, response_format=wanted)
    assert request.constraint == shape
    (warning,) = request.warnings
    assert "`response_format`" in warning
    assert f"`{shape.param}`" in warning


@pytest.mark.parametrize("tool_choice", ["auto", "none", None, ONE_OF | {"mode": "auto"}])
def test_an_explicit_shape_leaves_tools_that_need_not_be_called(tool_choice: Any) -> None:
    request = ask(grammar=GBNF, tools=TOOLS, tool_choice=tool_choice)
    assert request.constraint == grammar(GBNF, "grammar")
    assert request.warnings == ()
    assert isinstance(request.prompts[0], Chat)
    assert len(request.prompts[0].tools) == 3


def listed(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


# tool_choice -> mode, the tools that may be called, whether one was named
CHOICES: list[tuple[Any, str, tuple[str, ...] | None, bool]] = [
    (None, "auto", None, False),
    ("auto", "auto", None, False),
    ("none", "none", None, False),
    ("required", "required", None, False),
    (NAMED, "required", ("g",), True),
    ({"type": "function", "name": "h"}, "required", ("h",), True),
    (listed("h", "f"), "auto", ("f", "h"), False),
    (listed("g", "g"), "auto", ("g",), False),
    (listed("g", mode="required"), "required", ("g",), False),
    (ONE_OF, "required", ("g",), False),
    (ONE_OF | {"mode": "auto"}, "auto", ("g",), False),
]


@pytest.mark.parametrize("parallel", [None, True, False])
@pytest.mark.parametrize(("said", "mode", "names", "named"), CHOICES)
def test_a_tool_choice_arrives(
    said: Any, mode: str, names: tuple[str, ...] | None, named: bool, parallel: bool | None
) -> None:
    found = talk(tools=TOOLS, tool_choice=said, parallel_tool_calls=parallel)
    assert (found.tool_choice, found.allowed_tools, found.forces_named_tool) == (mode, names, named)
    assert found.parallel_tool_calls == (parallel is not False and not named)
    assert len(found.tools) == 3


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("said", [None, "auto", "none"])
def test_a_choice_that_forces_nothing_needs_no_tools(tools: Any, said: Any) -> None:
    found = talk(tools=tools, tool_choice=said, parallel_tool_calls=False)
    assert found.tools == ()
    assert found.allowed_tools is None


BAD_CHOICES = [
    ("required", None, "tool_choice"),
    ("required", [], "tool_choice"),
    (NAMED, None, "tool_choice"),
    (NAMED, [], "tool_choice"),
    (NAMED, TOOLS[:1], "tool_choice"),
    ("always", TOOLS, "tool_choice"),
    ("", TOOLS, "tool_choice"),
    ("f", TOOLS, "tool_choice"),
    (5, TOOLS, "tool_choice"),
    (["f"], TOOLS, "tool_choice"),
    ({}, TOOLS, "tool_choice.type"),
    ({"type": "function"}, TOOLS, "tool_choice"),
    ({"type": "function", "function": {}}, TOOLS, "tool_choice.function.name"),
    ({"type": "custom", "custom": {"name": "f"}}, TOOLS, "tool_choice"),
    (listed("g"), None, "tool_choice.allowed_tools.tools[0]"),
    (listed("f", "nobody"), TOOLS, "tool_choice.allowed_tools.tools[1]"),
    (listed(), TOOLS, "tool_choice.allowed_tools.tools"),
    (listed("f", mode="none"), TOOLS, "tool_choice.allowed_tools.mode"),
    ({"type": "allowed_tools"}, TOOLS, "tool_choice.tools"),
    ({"type": "allowed_tools", "allowed_tools": {}}, TOOLS, "tool_choice.allowed_tools.mode"),
    (ONE_OF | {"tools": []}, TOOLS, "tool_choice.tools"),
    (ONE_OF | {"tools": [{"type": "function"}]}, TOOLS, "tool_choice.tools[0]"),
    (ONE_OF | {"tools": [{"type": "custom", "name": "f"}]}, TOOLS, "tool_choice.tools[0]"),
    (ONE_OF | {"mode": None}, TOOLS, "tool_choice.mode"),
]


@pytest.mark.parametrize(("said", "tools", "param"), BAD_CHOICES)
def test_a_wrong_tool_choice_is_named(said: Any, tools: Any, param: str) -> None:
    assert refused(tools=tools, tool_choice=said).param == param


def test_a_tool_keeps_its_schema_and_its_strictness() -> None:
    said: list[tuple[Any, bool | None]] = [({}, True), (SCHEMA, False), (None, None)]
    functions = [
        {"name": f"f{i}", "parameters": parameters, "strict": strict}
        for i, (parameters, strict) in enumerate(said)
    ]
    found = talk(tools=[{"type": "function", "function": one} for one in functions])
    assert [(tool.parameters, tool.strict) for tool in found.tools] == said


@pytest.mark.parametrize("parameters", [True, "{}", [], 5])
def test_parameters_that_are_no_object_are_named(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert refused(tools=tools).param == "tools[0].function.parameters"


FINISHES: list[tuple[Any, Finish, str]] = [
    (NAMED, "tool_calls", "stop"),
    (NAMED, "length", "length"),
    ("required", "tool_calls", "tool_calls"),
    ("auto", "tool_calls", "tool_calls"),
    ("auto", "stop", "stop"),
    (ONE_OF, "tool_calls", "tool_calls"),
]


@pytest.mark.parametrize(("said", "finish", "told"), FINISHES)
def test_a_call_that_was_named_ends_with_stop(said: Any, finish: Finish, told: str) -> None:
    request = ask(tools=TOOLS, tool_choice=said, parallel_tool_calls=False)
    deltas = [
        Delta(choice=0, channel="tool_name", text="g", call=0),
        Delta(choice=0, channel="tool_args", text="{}", call=0),
        Delta(choice=0, finish=finish),
    ]
    writer = ChatEncoder(request, "m", 1)
    frames = [frame for delta in deltas for frame in writer.encode_delta(delta)]
    last = json.loads(frames[-1].removeprefix(b"data: "))
    assert last["choices"][0]["finish_reason"] == told
    whole = Completion()
    for delta in deltas:
        whole.add(delta)
    (choice,) = json.loads(ChatEncoder(request, "m", 1).encode_whole(whole))["choices"]
    assert choice["finish_reason"] == told
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "g", "arguments": "{}"}
