"""Schemas of Ollama and llama-server: objects have only the properties that the schema names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from dragoman.grammar.schema.closed_objects import close_objects
from dragoman.testing import ScriptedEngine
from dragoman.testing.grammars import match_grammar
from tests.schema_cases import grammar
from tests.support.serving import RunningServer, serve_scripted

COUNT, TEXT = {"type": "integer"}, {"type": "string"}
POINT = {"type": "object", "properties": {"x": COUNT, "y": COUNT}, "required": ["x"]}
NAMED = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
DEFS = {"$defs": {"point": POINT, "a/b c": POINT}}
# schema, instances that the closed schema allows, and those that only the schema itself allows
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "object": (POINT, [{"x": 1}, {"x": 1, "y": 2}], [{"x": 1, "z": 1}]),
    "array": ({"type": "array", "items": POINT}, [[{"x": 1}]], [[{"x": 1, "z": 1}]]),
    "property": (
        {"type": "object", "properties": {"p": POINT}},
        [{"p": {"x": 1}}],
        [{"p": {"x": 1, "z": 2}}, {"q": 1}],
    ),
    "reference": ({"$ref": "#/$defs/point"} | DEFS, [{"x": 1}], [{"x": 1, "z": 1}]),
    "escaped reference": ({"$ref": "#/$defs/a~1b%20c"} | DEFS, [{"x": 1}], [{"x": 1, "z": 1}]),
    "optional": ({"anyOf": [POINT, {"type": "null"}]}, [None, {"x": 1}], [{"x": 1, "z": 1}]),
    "single allOf": ({"allOf": [{"$ref": "#/$defs/point"}]} | DEFS, [{"x": 1}], [{"x": 1, "z": 1}]),
    "recursion": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        [{"next": {"next": {}}}],
        [{"next": {"z": 1}}],
    ),
}
# what stays open, because something else says what properties there may be
OPEN: dict[str, tuple[Any, list[Any]]] = {
    "no properties": ({"type": "object"}, [{"z": 1}]),
    "empty properties": ({"type": "object", "properties": {}}, [{"z": 1}]),
    "stated": (POINT | {"additionalProperties": True}, [{"x": 1, "z": 1}]),
    "unevaluated": (POINT | {"unevaluatedProperties": TEXT}, [{"x": 1, "z": "a"}]),
    "patterns": (POINT | {"patternProperties": {"^z": TEXT}}, [{"x": 1, "z": "a"}]),
    "required but not listed": (POINT | {"required": ["x", "z"]}, [{"x": 1, "z": 1}]),
    "several parts": ({"allOf": [POINT, NAMED]}, [{"x": 1, "name": "a"}]),
    "part by reference": (
        {"allOf": [{"$ref": "#/$defs/point"}, NAMED]} | DEFS,
        [{"x": 1, "name": "a"}],
    ),
    "escaped part by reference": (
        {"allOf": [{"$ref": "#/$defs/a~1b%20c"}, NAMED]} | DEFS,
        [{"x": 1, "name": "a"}],
    ),
    "alternatives beside properties": (
        NAMED | {"anyOf": [POINT, {"required": ["z"]}]},
        [{"name": "a", "x": 1}, {"name": "a", "z": 1}],
    ),
}


def allows(schema: Any, instance: Any) -> bool:
    compiled, _ = grammar(schema, strict=False)
    assert compiled is not None
    return match_grammar(compiled, json.dumps(instance))[0]


@pytest.mark.parametrize("name", CASES)
def test_objects_have_only_named_properties(name: str) -> None:
    schema, kept, dropped = CASES[name]
    closed, judge = close_objects(schema), Draft202012Validator(schema)
    assert [allows(closed, instance) for instance in kept] == [True] * len(kept)
    assert [allows(closed, instance) for instance in dropped] == [False] * len(dropped)
    assert all(judge.is_valid(instance) for instance in (*kept, *dropped))


@pytest.mark.parametrize("name", OPEN)
def test_objects_stay_open(name: str) -> None:
    schema, instances = OPEN[name]
    assert all(allows(close_objects(schema), instance) for instance in instances)


@pytest.mark.parametrize("schema", [True, False, None, 5, [], "text", {"properties": 5}])
def test_what_is_no_object_stays_as_it_is(schema: Any) -> None:
    assert close_objects(schema) == schema


def test_a_schema_that_is_too_deep_is_left_to_its_reader() -> None:
    schema: Any = POINT
    for _ in range(100_000):
        schema = {"items": schema}
    assert close_objects(schema) is schema


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """An engine whose answer has a property that the schema does not name."""
    answer = json.dumps({"x": 1, "z": 1})
    with serve_scripted(ScriptedEngine(answer, check_grammars=True)) as running:
        yield running


MESSAGES = [{"role": "user", "content": "A point?"}]
OPENAI_FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "schema": POINT}}
FIELDS: list[tuple[str, dict[str, Any], bool]] = [
    ("/api/chat", {"messages": MESSAGES, "format": POINT, "stream": False}, True),
    ("/api/generate", {"prompt": "A point?", "format": POINT, "stream": False}, True),
    ("/v1/chat/completions", {"messages": MESSAGES, "json_schema": POINT}, True),
    ("/v1/chat/completions", {"messages": MESSAGES, "json_schema": json.dumps(POINT)}, True),
    (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "structured_outputs": {"json": POINT, "disable_additional_properties": True},
        },
        True,
    ),
    ("/v1/chat/completions", {"messages": MESSAGES, "structured_outputs": {"json": POINT}}, False),
    ("/v1/chat/completions", {"messages": MESSAGES, "guided_json": POINT}, False),
    ("/v1/chat/completions", {"messages": MESSAGES, "response_format": OPENAI_FORMAT}, False),
]


@pytest.mark.parametrize(("path", "fields", "is_closed"), FIELDS)
def test_which_fields_close_objects(
    server: RunningServer, path: str, fields: dict[str, Any], is_closed: bool
) -> None:
    """An engine that checks its grammar fails on what the grammar does not allow."""
    body = {"model": "scripted", **fields}
    response = httpx.post(server.url + path, json=body, timeout=60)
    assert (response.status_code == 200) is not is_closed, response.text
