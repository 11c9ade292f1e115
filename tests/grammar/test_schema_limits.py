"""Limits of the schema parser, and hostile schemas: they are parsed quickly or rejected."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import BadRequest
from dragoman.grammar.schema import limits
from tests.support.schema_parsing import PARAM, STRING, object_schema, parse, parse_error, try_parse

pytestmark = pytest.mark.slow


def nested(levels: int, make: Any) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = make(schema)
    return schema


def chain(length: int, make: Any) -> dict[str, Any]:
    """Definitions, each built from a reference to the next."""
    definitions = {f"d{index}": make({"$ref": f"#/$defs/d{index + 1}"}) for index in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{length}": object_schema()}}


def wrap_in_property(schema: Any) -> Any:
    return object_schema(properties={"a": schema})


TOO_COMPLEX: dict[str, Any] = {
    "bytes": {"description": "x" * limits.MAX_SIZE},
    "levels": nested(limits.MAX_DEPTH, wrap_in_property),
    "levels of JSON": {"default": nested(10_000, lambda inner: [inner])},
    "subschemas": {"anyOf": [{}] * (limits.MAX_NODES + 1)},
    "properties": {"properties": {str(index): True for index in range(limits.MAX_PROPERTIES + 1)}},
    "enum values": {"enum": list(range(limits.MAX_ENUM_VALUES + 1))},
    "text of enum values": {"enum": ["x" * 1000 + str(index) for index in range(140)]},
    "length": {"minLength": limits.MAX_STRING_LENGTH + 1},
    "items": {"minItems": limits.MAX_ITEMS + 1},
    "minimum of properties": {"minProperties": limits.MAX_ITEMS + 1},
    "pattern": {"pattern": "a" * (limits.MAX_PATTERN_LENGTH + 1)},
    "chain of references": chain(limits.MAX_DEPTH + 1, lambda schema: schema),
    "options": nested(
        30,
        lambda schema: object_schema(
            properties={"x": schema}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]
        ),
    ),
}


@pytest.mark.parametrize("name", TOO_COMPLEX)
def test_schemas_beyond_a_limit_are_rejected(name: str) -> None:
    error = parse_error(TOO_COMPLEX[name], strict=False)
    assert error.code == "schema_too_complex"
    assert "is too complex: it has" in error.message


def test_the_greatest_depth_is_accepted() -> None:
    assert parse(nested(limits.MAX_DEPTH - 1, wrap_in_property)).warnings == ()


def test_the_number_of_warnings_is_limited() -> None:
    schema = {"type": "array", "prefixItems": [STRING | {"format": "iri"}] * 500}
    parsed = parse(schema, strict=False)
    assert len(parsed.warnings) == limits.MAX_WARNINGS + 1
    assert (
        parsed.warnings[-1]
        == f"`{PARAM}`: {500 - limits.MAX_WARNINGS} more keywords are not enforced."
    )


def test_pointers_are_shown_without_control_characters() -> None:
    parsed = parse(object_schema(properties={"a\r\nb": {"format": "iri"}}), strict=False)
    assert parsed.warnings == (rf"`{PARAM}`: `/properties/a\r\nb/format` is not enforced.",)


REQUIRED_OPTIONS = [
    object_schema(properties={f"k{index}": STRING}, required=[f"k{index}"]) for index in range(30)
]
RECURSIVE_ADDITIONAL = {"$ref": "#/$defs/a", "additionalProperties": {"$ref": "#/$defs/b"}}
HOSTILE: dict[str, Any] = {
    "deep lists": nested(10_000, lambda inner: [inner]),
    "deep objects": nested(10_000, wrap_in_property),
    "deep options": nested(63, lambda inner: {"anyOf": [inner, STRING]}),
    "deep allOf": nested(63, lambda inner: {"allOf": [inner], "minLength": 1}),
    "deep negations": nested(60, lambda inner: {"not": inner}),
    "intersection of many options": {"allOf": [{"anyOf": REQUIRED_OPTIONS} for _ in range(30)]},
    "intersection of many exclusive options": {
        "allOf": [{"oneOf": REQUIRED_OPTIONS} for _ in range(6)]
    },
    "nested options": nested(20, lambda inner: {"anyOf": [{"allOf": [inner]}, {"minLength": 3}]}),
    "many exclusive options": {
        "oneOf": [
            object_schema(properties={"k": {"const": index}}, required=["k"])
            for index in range(400)
        ]
    },
    "many overlapping options": {"oneOf": [{"minLength": index} for index in range(400)]},
    "doubling definitions": chain(
        40, lambda schema: object_schema(properties={"x": schema, "y": schema}, required=["x"])
    ),
    "doubling definitions with sibling keywords": chain(
        40,
        lambda schema: {
            "properties": {"x": schema | {"minProperties": 1}, "y": schema | {"maxProperties": 9}}
        },
    ),
    "doubling intersections": {
        "allOf": [{"$ref": "#/$defs/d0"}, {"additionalProperties": {"$ref": "#/$defs/d0"}}],
        "$defs": chain(40, lambda schema: object_schema(properties={"x": schema, "y": schema}))[
            "$defs"
        ],
    },
    "doubling options": chain(
        60,
        lambda schema: object_schema(
            properties={"x": schema}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]
        ),
    ),
    "a chain of references for llguidance": chain(
        1500,
        lambda schema: object_schema(properties={"x": schema}, patternProperties={"^y": schema}),
    ),
    "cycles of different lengths": {
        "allOf": [{"$ref": f"#/$defs/{name}0"} for name in "abcde"],
        "$defs": {
            f"{name}{index}": object_schema(
                properties={"x": {"$ref": f"#/$defs/{name}{(index + 1) % size}"}},
                additionalProperties={"$ref": f"#/$defs/{name}{(index * 2 + 1) % size}"},
            )
            for name, size in zip("abcde", (3, 5, 7, 11, 13), strict=True)
            for index in range(size)
        },
    },
    "a cycle of allOf": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "a cycle of allOf with other keywords": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"allOf": [{"$ref": "#/$defs/b"}], "minLength": 2},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, STRING], "maxLength": 9},
        },
    },
    "recursive additional properties": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": object_schema(additionalProperties=RECURSIVE_ADDITIONAL),
            "b": object_schema(additionalProperties=RECURSIVE_ADDITIONAL),
        },
    },
    "a cycle in propertyNames": {
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}},
        "propertyNames": {"$ref": "#/$defs/a"},
    },
    "values of a recursive schema": {
        "const": {"a": {"a": {"a": {}}}},
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"anyOf": [{"$ref": "#/$defs/a"}, {"additionalProperties": {"$ref": "#/$defs/a"}}]}
        },
    },
    "large enums": {"allOf": [{"enum": list(range(2400))}, {"enum": list(range(1, 2401))}]},
    "values and a pattern": {
        "enum": [f"v{index}" for index in range(4900)],
        "pattern": "^v.*[13579]$",
    },
    "large values": {"enum": [{"a": [index] * 20} for index in range(1200)], "minProperties": 1},
    "a pattern with exponential backtracking": {
        "type": "string",
        "pattern": "(x+x+)+y",
        "minLength": 4000,
        "maxLength": 5000,
    },
    "nested repetitions": {"pattern": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"},
    "many alternatives": {
        "pattern": "|".join(f".*{letter}.{{50}}" for letter in "abcdefghijkl"),
        "maxLength": 100,
    },
    "disjoint patterns": {
        "allOf": [
            {"type": "string", "pattern": f"^(a{{{prime}}})*a$"} for prime in (3, 5, 7, 11, 13)
        ]
    },
    "very many patterns": {"anyOf": [{"pattern": f"^{index}"} for index in range(8000)]},
    "very many pattern properties": {
        "patternProperties": {f"^x{index}": {} for index in range(3000)},
        "additionalProperties": False,
    },
    "very many prefix items": {"prefixItems": [{"minLength": index} for index in range(3000)]},
    "large bounds": {"minimum": -1e308, "maximum": 1e308, "multipleOf": 1e-308},
    "large multiples": {
        "allOf": [{"type": "integer", "multipleOf": 10**15 + index} for index in range(200)]
    },
    "nested counts": {
        "minItems": 2000,
        "maxItems": 2000,
        "items": {"minItems": 2000, "items": {"minItems": 2000}},
    },
    "names that look like keywords": {"properties": {"$ref": {"$ref": "#/properties/$ref"}}},
    "a name of special characters": object_schema(
        properties={"\x00\U0001f600~/%": {"not": {"a": []}}}
    ),
    "a long reference": {"$ref": "#" + "/a" * 50_000},
    "a long name in a reference": {"$ref": "#/" + "%" * 100_000},
}


@pytest.mark.parametrize("for_tool", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_parsed_or_rejected(name: str, for_tool: bool) -> None:
    result = try_parse(HOSTILE[name], for_tool=for_tool)
    if isinstance(result, BadRequest):
        assert result.code in ("invalid_schema", "schema_too_complex")
        assert len(result.message) < 1000
