"""Parsing schemas: the nodes of each keyword, errors, warnings, references and tools."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dragoman.grammar.schema import limits
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    AnyOf,
    Anything,
    Array,
    KeyPattern,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Number,
    Object,
    ParsedSchema,
    SchemaReference,
    String,
)
from dragoman.grammar.schema.simplify import list_options
from tests.support.schema_parsing import PARAM, STRING, object_schema, parse, parse_error

NOTHING = Nothing()
INTEGER = Number(integer=True)


def closed_object(*required: str, **properties: Node) -> Object:
    return Object(tuple(properties.items()), frozenset(required), NOTHING)


def literals(*values: Any) -> Literals:
    return Literals(tuple(map(json.dumps, values)))


PARSED: dict[str, tuple[Any, Node]] = {
    # whole schemas
    "true": (True, Anything()),
    "empty schema": ({}, Anything()),
    "only annotations": (
        {"title": "x", "description": "y", "default": 1, "examples": [2], "$comment": "z"}
        | {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://a.b/c"}
        | {"deprecated": True, "readOnly": True, "x-mine": 1, "contentMediaType": "text/html"}
        | {"discriminator": {"propertyName": "k"}, "nullable": True, "unknown-keyword": []},
        Anything(),
    ),
    # types
    "string": ({"type": "string"}, String()),
    "number": ({"type": "number"}, Number()),
    "integer": ({"type": "integer"}, INTEGER),
    "boolean": ({"type": "boolean"}, BOOLEAN),
    "null": ({"type": "null"}, NULL),
    "array": ({"type": "array"}, Array()),
    "object": ({"type": "object"}, Object()),
    "types": ({"type": ["string", "null"]}, AnyOf((String(), NULL))),
    "integers are numbers": ({"type": ["integer", "number"]}, Number()),
    "keywords apply to their type": (
        {"type": ["string", "integer", "null"], "minLength": 2, "minimum": 3, "minItems": 4},
        AnyOf((String(2), Number(True, "3"), NULL)),
    ),
    # keywords without a type
    "declared types override implied ones": (
        {"type": ["object", "null"], "anyOf": [{"required": ["a"]}]},
        AnyOf((Object((("a", Anything()),), frozenset("a")), NULL)),
    ),
    "types of another part override implied ones": (
        {"allOf": [{"type": "string"}, {"minimum": 5}]},
        String(),
    ),
    # strings
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 5.0}, String(2, 5)),
    "a huge maximum length": (
        {"type": "string", "maxLength": 10**9},
        String(0, limits.MAX_STRING_LENGTH),
    ),
    "a pattern": ({"type": "string", "pattern": "^a+$"}, String(pattern="^a+$")),
    "a character class in ECMAScript syntax": (
        {"type": "string", "pattern": r"^[[a&&b~]\[[^\]&]$"},
        String(pattern=r"^[\[a\&\&b\~]\[[^\]\&]$"),
    ),
    "a pattern with lengths": (
        {"type": "string", "pattern": "^a", "maxLength": 9},
        String(max_length=9, pattern="^a"),
    ),
    "formats apply to strings only": ({"type": "integer", "format": "int64"}, INTEGER),
    # numbers
    "bounds": ({"type": "number", "minimum": 0.5, "maximum": 2}, Number(False, "0.5", "2")),
    "bounds keep their text": ({"type": "integer", "minimum": 1.5}, Number(True, "1.5")),
    "exclusive bounds": (
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e3},
        Number(exclusive_minimum="0", exclusive_maximum="1000.0"),
    ),
    "exclusive bounds of draft 4": (
        {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 5}
        | {"exclusiveMaximum": False},
        Number(exclusive_minimum="0", maximum="5"),
    ),
    "multiples": ({"type": "number", "multipleOf": 0.1}, Number(multiple_of="0.1")),
    "bounds of 64 bits": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        Number(True, str(-(2**63)), str(2**63 - 1)),
    ),
    "bounds that floating point would round": (
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 7},
        Number(True, str(2**53 + 1), str(2**53 + 7)),
    ),
    # arrays
    "items": (
        {"type": "array", "items": STRING, "minItems": 1, "maxItems": 3},
        Array((), String(), 1, 3),
    ),
    "prefix items": (
        {"type": "array", "prefixItems": [STRING, {"type": "null"}], "items": {"type": "integer"}},
        Array((String(), NULL), INTEGER),
    ),
    "prefix items of draft 4": (
        {"type": "array", "items": [STRING], "additionalItems": {"type": "null"}},
        Array((String(),), NULL),
    ),
    "closed array": (
        {"type": "array", "prefixItems": [STRING], "items": False},
        Array((String(),), NOTHING, 0, 1),
    ),
    "an impossible item": (
        {"type": "array", "prefixItems": [STRING, False, STRING]},
        Array((String(),), NOTHING, 0, 1),
    ),
    "no items": ({"type": "array", "maxItems": 0}, Array((), NOTHING, 0, 0)),
    # objects
    "properties in order": (
        object_schema(properties={"b": STRING, "a": {"type": "null"}}, required=["a"]),
        Object((("b", String()), ("a", NULL)), frozenset("a")),
    ),
    "closed object": (
        object_schema(properties={"a": STRING}, additionalProperties=False),
        closed_object(a=String()),
    ),
    "additional properties": (
        object_schema(additionalProperties=STRING),
        Object(additional=String()),
    ),
    "unevaluatedProperties": (object_schema(unevaluatedProperties=False), closed_object()),
    "a required property that is not declared": (
        object_schema(required=["a"], additionalProperties=STRING),
        Object((("a", String()),), frozenset("a"), String()),
    ),
    "a forbidden property": (
        object_schema(properties={"a": False}),
        Object((("a", NOTHING),)),
    ),
    "a forbidden property of a closed object": (
        object_schema(properties={"a": False, "b": STRING}, additionalProperties=False),
        closed_object(b=String()),
    ),
    "propertyNames with enum": (
        object_schema(propertyNames={"enum": ["a", "b"]}, additionalProperties=STRING),
        closed_object(a=String(), b=String()),
    ),
    "propertyNames without effect": (object_schema(propertyNames={"type": "string"}), Object()),
    "maxProperties equal to required": (
        object_schema(properties={"a": STRING, "b": STRING}, required=["b"], maxProperties=1),
        closed_object("b", b=String()),
    ),
    "no properties allowed": (
        object_schema(properties={"a": STRING}, maxProperties=0),
        closed_object(),
    ),
    "minProperties equal to all properties": (
        object_schema(
            properties={"a": STRING, "b": STRING}, additionalProperties=False, minProperties=2
        ),
        closed_object("a", "b", a=String(), b=String()),
    ),
    "minProperties of one": (
        object_schema(
            properties={"a": STRING, "b": STRING}, additionalProperties=False, minProperties=1
        ),
        AnyOf(
            (closed_object("a", a=String(), b=String()), closed_object("b", a=String(), b=String()))
        ),
    ),
    "counts without effect": (
        object_schema(properties={"a": STRING}, required=["a"], minProperties=1)
        | {"additionalProperties": False, "maxProperties": 3, "patternProperties": {}},
        closed_object("a", a=String()),
    ),
    # values
    "enum": ({"enum": ["a", 1, None]}, literals("a", 1, None)),
    "const": ({"const": {"a": [1]}}, literals({"a": [1]})),
    "values of a type": (
        {"type": ["string", "integer"], "enum": ["a", 1, 1.5, 2.0]},
        literals("a", 1, 2.0),
    ),
    "values in bounds": ({"enum": [1, 5, 9], "minimum": 2, "exclusiveMaximum": 9}, literals(5)),
    "values of a length": ({"enum": ["a", "bb", 3], "minLength": 2}, literals("bb", 3)),
    "values of a pattern": ({"enum": ["ab", "bb"], "pattern": "^a"}, literals("ab")),
    "values of an object schema": (
        {
            "enum": [{"a": 1}, {"a": "x"}, {}],
            **object_schema(properties={"a": STRING}, required=["a"]),
        },
        literals({"a": "x"}),
    ),
    "enum and const": ({"enum": [1, 2, 3], "const": 2.0}, literals(2)),
    # options
    "anyOf": ({"anyOf": [STRING, {"type": "null"}]}, AnyOf((String(), NULL))),
    "one option": ({"anyOf": [STRING]}, String()),
    "equal options": ({"anyOf": [STRING, STRING]}, String()),
    "options with values": (
        {"anyOf": [{"const": 1}, STRING, {"const": 2}]},
        AnyOf((literals(1, 2), String())),
    ),
    "an option that allows anything": ({"anyOf": [STRING, {}]}, Anything()),
    "an impossible option": ({"anyOf": [False, STRING]}, String()),
    "nested options": (
        {"anyOf": [{"anyOf": [STRING, {"type": "null"}]}, {"type": "integer"}]},
        AnyOf((String(), NULL, INTEGER)),
    ),
    "options beside a type": (
        {"type": "string", "anyOf": [{"minLength": 2}, {"type": "null"}]},
        String(2),
    ),
    "anyOf required properties": (
        object_schema(properties={"a": STRING}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        AnyOf(
            (
                Object((("a", String()),), frozenset("a")),
                Object((("a", String()), ("b", Anything())), frozenset("b")),
            )
        ),
    ),
    "oneOf types": ({"oneOf": [STRING, {"type": "null"}]}, AnyOf((String(), NULL))),
    "oneOf values": ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, literals(1, 2, 3)),
    "oneOf with a discriminator": (
        {
            "oneOf": [
                object_schema(properties={"k": {"const": kind}, "a": STRING}, required=["a", "k"])
                for kind in "xy"
            ]
        },
        AnyOf(
            tuple(
                Object((("k", literals(kind)), ("a", String())), frozenset("ak")) for kind in "xy"
            )
        ),
    ),
    "oneOf with a property that one option forbids": (
        {"oneOf": [object_schema(required=["a"]), object_schema(properties={"a": False})]},
        AnyOf((Object((("a", Anything()),), frozenset("a")), Object((("a", NOTHING),)))),
    ),
    "oneOf ranges": (
        {"type": "integer", "oneOf": [{"maximum": 2}, {"minimum": 5}]},
        AnyOf((Number(True, maximum="2"), Number(True, minimum="5"))),
    ),
    "oneOf required properties": (
        object_schema(
            properties={"a": STRING, "b": STRING}, oneOf=[{"required": ["a"]}, {"required": ["b"]}]
        ),
        AnyOf(
            (
                Object((("a", String()), ("b", NOTHING)), frozenset("a")),
                Object((("a", NOTHING), ("b", String())), frozenset("b")),
            )
        ),
    ),
    # allOf
    "bounds of several parts": (
        {"allOf": [{"type": "number", "minimum": 1, "multipleOf": 4}]}
        | {"minimum": 0.5, "maximum": 90, "multipleOf": 6},
        Number(False, "1", "90", multiple_of="12"),
    ),
    "lengths of several parts": (
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 8, "minLength": 1}]},
        String(2, 8),
    ),
    "properties of several parts": (
        object_schema(
            properties={"a": {"type": ["string", "null"]}},
            allOf=[object_schema(properties={"b": STRING, "a": STRING}, required=["b"])],
            required=["a"],
        ),
        Object((("a", String()), ("b", String())), frozenset("ab")),
    ),
    "additional properties of several parts": (
        {
            "allOf": [
                object_schema(properties={"a": STRING, "b": STRING}, additionalProperties=False)
            ]
        }
        | object_schema(properties={"a": {}}, additionalProperties={"type": ["string", "null"]}),
        closed_object(a=String(), b=String()),
    ),
    "items of several parts": (
        {"type": "array", "prefixItems": [STRING], "maxItems": 4}
        | {"allOf": [{"items": {"type": ["string", "null"]}, "minItems": 1}]},
        Array((String(),), AnyOf((String(), NULL)), 1, 4),
    ),
    "options of several parts": (
        {"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]},
        NULL,
    ),
    # references
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": STRING}}, String()),
    "a reference with an annotation": (
        object_schema(
            properties={"x": {"$ref": "#/definitions/a", "description": "x"}},
            definitions={"a": STRING},
        ),
        Object((("x", String()),)),
    ),
    "a reference to any place": (
        object_schema(
            properties={
                "x": {"$ref": "#/properties/y/items"},
                "y": {"type": "array", "items": STRING},
            }
        ),
        Object((("x", String()), ("y", Array((), String())))),
    ),
    "a reference into a list": (
        {"anyOf": [STRING, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
        AnyOf((String(), Array((), String()))),
    ),
    "a reference with escapes": (
        {"$ref": "#/$defs/a~1b~0c%20d%25", "$defs": {"a/b~c d%": STRING}},
        String(),
    ),
    "a reference with sibling keywords": (
        {"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string", "maxLength": 5}}},
        String(2, 5),
    ),
    "a reference in allOf": (
        {"allOf": [{"$ref": "#/$defs/a"}], "required": ["x"]}
        | {"$defs": {"a": object_schema(properties={"x": STRING})}},
        Object((("x", String()),), frozenset("x")),
    ),
    "an option without finite values": (
        {"anyOf": [STRING, {"$ref": "#/$defs/a"}]}
        | {"$defs": {"a": object_schema(properties={"a": {"$ref": "#/$defs/a"}}, required=["a"])}},
        String(),
    ),
    # no effect
    "keywords without effect": (
        {
            "type": "array",
            "uniqueItems": False,
            "not": False,
            "if": STRING,
            "unevaluatedItems": True,
        }
        | {"dependentRequired": {}, "propertyNames": False, "contains": STRING, "minContains": 0},
        Array(),
    ),
}


@pytest.mark.parametrize("name", PARSED)
def test_schema_is_parsed_into_nodes(name: str) -> None:
    schema, node = PARSED[name]
    parsed = parse(schema)
    assert parsed == ParsedSchema(node)


# schemas without `type`, and the types that their keywords are about
IMPLIED: dict[str, tuple[Any, Node]] = {
    "string implied": ({"maxLength": 3}, String(max_length=3)),
    "string implied by format": ({"format": "date"}, String(format="date")),
    "number implied": ({"minimum": 3}, Number(minimum="3")),
    "array implied": ({"items": STRING}, Array((), String())),
    "object implied": ({"required": ["a"]}, Object((("a", Anything()),), frozenset("a"))),
    "two types implied": (
        {"minLength": 1, "minItems": 1},
        AnyOf((String(1), Array(min_items=1))),
    ),
    "unevaluatedProperties without type": ({"unevaluatedProperties": False}, closed_object()),
}


@pytest.mark.parametrize("name", IMPLIED)
def test_only_implied_types_are_allowed_with_a_warning(name: str) -> None:
    schema, node = IMPLIED[name]
    parsed = parse(schema, strict=False)
    assert parsed.root == node
    [warning] = parsed.warnings
    assert warning.startswith(f"`{PARAM}` has no `type`; only ")
    strict = parse(schema)
    assert strict.warnings == ()
    assert isinstance(strict.root, AnyOf)
    assert {*list_options(node), NULL} <= {*strict.root.options, NULL}
    assert len(strict.root.options) == 5


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}}
INVALID: dict[str, tuple[Any, str]] = {
    "a number": (5, f"`{PARAM}` must be a schema"),
    "null schema": (None, f"`{PARAM}` must be a schema"),
    "a list": ([], f"`{PARAM}` must be a schema"),
    "a number for a type": ({"type": 5}, "`/type` must be one of"),
    "an unknown type": (
        object_schema(properties={"a": {"type": "str"}}),
        "`/properties/a/type` must be",
    ),
    "an empty list of types": ({"type": []}, "`/type` must be one of"),
    "a list in a list of types": ({"type": [["string"]]}, "`/type` must be one of"),
    "properties that are a list": ({"properties": []}, "`/properties` must be an object"),
    "a property that is not a schema": ({"properties": {"a/b": 1}}, "`/properties/a~1b` must be"),
    "required as a string": ({"required": "x"}, "`/required` must be a list of strings"),
    "required as a boolean": ({"required": True}, "`/required` must be a list of strings"),
    "required numbers": ({"required": [1]}, "`/required` must be a list of strings"),
    "empty enum": ({"enum": []}, "`/enum` must be a non-empty list"),
    "empty anyOf": ({"anyOf": []}, "`/anyOf` must be a non-empty list"),
    "an option that is not a schema": ({"anyOf": [{}, 3]}, "`/anyOf/1` must be a schema"),
    "allOf as an object": ({"allOf": {}}, "`/allOf` must be a non-empty list"),
    "negative length": ({"minLength": -1}, "`/minLength` must be a non-negative integer"),
    "fractional length": ({"maxLength": 1.5}, "`/maxLength` must be a non-negative integer"),
    "boolean length": ({"minItems": True}, "`/minItems` must be a non-negative integer"),
    "a string as bound": ({"minimum": "3"}, "`/minimum` must be a number"),
    "a boolean as bound": ({"maximum": True}, "`/maximum` must be a number"),
    "a string as exclusive bound": ({"exclusiveMinimum": "3"}, "`/exclusiveMinimum` must be"),
    "multiples of zero": ({"multipleOf": 0}, "`/multipleOf` must be a number above 0"),
    "multiples of a negative number": (
        {"multipleOf": -2},
        "`/multipleOf` must be a number above 0",
    ),
    "a number as pattern": ({"pattern": 3}, "`/pattern` must be a string"),
    "a list as format": ({"format": []}, "`/format` must be a string"),
    "a number as items": ({"items": 3}, "`/items` must be a schema"),
    "a string as additionalProperties": (
        {"additionalProperties": "no"},
        "`/additionalProperties` must be",
    ),
    "a list as patternProperties": ({"patternProperties": []}, "`/patternProperties` must be"),
    "a number as reference": ({"$ref": 3}, "`/$ref` must be a string"),
    "a reference without target": (
        object_schema(properties={"a": {"$ref": "#/$defs/b"}}),
        "`/properties/a/$ref` does not exist in this schema",
    ),
    "an invalid index in a reference": (
        {"anyOf": [{"$ref": "#/anyOf/01"}]},
        "`/anyOf/0/$ref` does not exist",
    ),
    "an external reference": ({"$ref": "https://a.b/c"}, "`/$ref` must point into this schema"),
    "a reference to an anchor": ({"$ref": "#a"}, "`/$ref` must point into this schema"),
    "a reference to a list": ({"$ref": "#/enum", "enum": [1]}, "`/enum` must be a schema"),
    "a reference to itself": ({"$ref": "#"}, "`/$ref` refers only to itself"),
    "references to each other": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "refers only to itself",
    ),
    "an option that is the schema itself": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [STRING, {"$ref": "#/$defs/a"}]}}},
        "`/$defs/a` refers only to itself",
    ),
    "not a number": ({"minimum": float("nan")}, "is not JSON"),
    "infinity": ({"const": float("inf")}, "is not JSON"),
    "a number out of range": ({"maximum": 10**400}, "a number that is out of range"),
    "a set": ({"enum": {1, 2}}, "is not JSON"),
    "a lone surrogate": ({"const": "\ud800"}, "is not JSON"),
    "false": (False, f"`{PARAM}` allows no value"),
    "negation of the empty schema": ({"not": {}}, "allows no value"),
    "negation of true": ({"not": True}, "allows no value"),
    "contradictory lengths": (
        {"type": "string", "minLength": 3, "maxLength": 2},
        "allows no value",
    ),
    "contradictory bounds": ({"type": "number", "minimum": 3, "maximum": 2}, "allows no value"),
    "an empty half-open range": (
        {"type": "number", "minimum": 3, "exclusiveMaximum": 3},
        "allows no value",
    ),
    "no integer in range": (
        {"type": "integer", "minimum": 1.2, "maximum": 1.8},
        "allows no value",
    ),
    "no multiple in range": (
        {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5},
        "allows no value",
    ),
    "a format that contradicts a length": (
        {"type": "string", "format": "uuid", "maxLength": 9},
        "allows no value",
    ),
    "fewer items than needed": (
        {"type": "array", "items": False, "minItems": 1},
        "allows no value",
    ),
    "a const of another type": ({"type": "string", "const": 5}, "allows no value"),
    "contradictory types": ({"allOf": [STRING, {"type": "null"}]}, "allows no value"),
    "contradictory values": ({"allOf": [{"const": 1}, {"const": True}]}, "allows no value"),
    "a required property that is forbidden": (
        object_schema(required=["a"], additionalProperties=False),
        "allows no value",
    ),
    "more required properties than allowed": (
        object_schema(required=["a", "b"], maxProperties=1),
        "allows no value",
    ),
    "fewer properties than required": (
        object_schema(properties={"a": STRING}, additionalProperties=False, minProperties=2),
        "allows no value",
    ),
    "a required name that is forbidden": (
        object_schema(propertyNames={"enum": ["a"]}, required=["b"]),
        "allows no value",
    ),
    "no finite value": (
        {"$ref": "#/$defs/a"}
        | {"$defs": {"a": object_schema(properties={"a": {"$ref": "#/$defs/a"}}, required=["a"])}},
        "allows no value",
    ),
    "contradictory patterns": (
        {"type": "string", "allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]},
        "allows no value",
    ),
}


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("strict", [True, False])
def test_invalid_schemas_are_rejected(name: str, strict: bool) -> None:
    schema, problem = INVALID[name]
    error = parse_error(schema, strict=strict)
    assert problem in error.message
    assert error.code == "invalid_schema"


UNENFORCED: dict[str, tuple[Any, str, Node]] = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "/uniqueItems", Array()),
    "unevaluatedItems": (
        {"type": "array", "unevaluatedItems": False, "contains": {}, "minContains": 0},
        "/unevaluatedItems",
        Array(),
    ),
    "propertyNames": (object_schema(propertyNames={"format": "uri"}), "/propertyNames", Object()),
    "unevaluatedProperties": (
        object_schema(allOf=[OBJECT], unevaluatedProperties=False),
        "/unevaluatedProperties",
        Object((("a", String()),)),
    ),
    "$dynamicRef": ({"$dynamicRef": "#a", "type": "string"}, "/$dynamicRef", String()),
    "$recursiveRef": ({"$recursiveRef": "#a", "type": "string"}, "/$recursiveRef", String()),
    "$id around a reference": (
        {"type": "array", "items": {"$id": "https://a.b/c", "anyOf": [{"$ref": "#/$defs/s"}]}}
        | {"$defs": {"s": STRING}},
        "/items/$id",
        Array(items=String()),
    ),
    "format": ({"type": "string", "format": "iri"}, "/format", String()),
    "format without type": ({"format": "iri"}, "/format", Anything()),
    "lookahead": ({"type": "string", "pattern": "^(?=a)"}, "/pattern", String()),
    "backreference": ({"type": "string", "pattern": r"^(a)\1$"}, "/pattern", String()),
    "an invalid pattern": ({"type": "string", "pattern": "("}, "/pattern", String()),
    "an empty class": ({"type": "string", "pattern": "[]a]"}, "/pattern", String()),
    "a pattern too complex for a length": (
        {"type": "string", "pattern": "^(.*a.{500}){3}$", "maxLength": 5000},
        "/maxLength",
        String(pattern="^(.*a.{500}){3}$"),
    ),
    "a bound out of range": ({"type": "integer", "minimum": 10**30}, "/minimum", INTEGER),
    "a multiple too fine": ({"type": "number", "multipleOf": 1e-300}, "/multipleOf", Number()),
    "integers are numbers": (
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        "/oneOf",
        AnyOf((INTEGER, Number())),
    ),
    "formats do not exclude each other": (
        {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "time"}]},
        "/oneOf",
        AnyOf((String(format="date"), String(format="time"))),
    ),
    "too many overlapping patterns of names": (
        object_schema(patternProperties=dict.fromkeys("abcde", STRING), additionalProperties=False),
        "/patternProperties",
        Object(additional=String()),
    ),
    "an unsupported pattern of names": (
        object_schema(patternProperties={"a(?=b)": STRING}, additionalProperties=False),
        "/patternProperties",
        Object(additional=String()),
    ),
    "a minimum of arbitrary properties": (
        object_schema(minProperties=3),
        "/minProperties",
        LlguidanceSchema(json.dumps({"type": ["object"]}), Object(min_properties=3)),
    ),
    "a recursive reference with sibling keywords": (
        object_schema(properties={"a": {"type": "object", "$ref": "#", "required": ["b"]}}),
        "/properties/a/$ref",
        Object((("a", Object((("b", Anything()),), frozenset("b"))),)),
    ),
    "nested keywords": (
        {
            "$ref": "#/$defs/x~1y",
            "$defs": {"x/y": {"type": "array", "prefixItems": [{"$dynamicRef": "#a"}]}},
        },
        "/$defs/x~1y/prefixItems/0/$dynamicRef",
        Array((Anything(),)),
    ),
}


@pytest.mark.parametrize("name", UNENFORCED)
def test_unenforced_keywords_are_errors_in_strict_schemas_and_warnings_in_others(
    name: str,
) -> None:
    schema, pointer, node = UNENFORCED[name]
    error = parse_error(schema)
    assert (error.code, f"`{pointer}`" in error.message) == ("unsupported_keyword", True)
    parsed = parse(schema, strict=False)
    assert parsed.root == node
    assert parsed.warnings == (f"`{PARAM}`: `{pointer}` is not enforced.",)


@pytest.mark.parametrize(
    "name",
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"],
)
def test_supported_formats(name: str) -> None:
    assert parse({"type": "string", "format": name}) == ParsedSchema(String(format=name))


EXPORTED: dict[str, Any] = {
    "maxProperties with pattern properties": object_schema(
        patternProperties={"^x": STRING}, additionalProperties=False, maxProperties=2
    ),
    "maxProperties": object_schema(maxProperties=3),
    "minProperties": object_schema(minProperties=1, additionalProperties=STRING),
    "two patterns": {"type": "string", "pattern": "^a", "allOf": [{"pattern": "b$"}]},
    "a pattern of a definition": {
        "allOf": [{"$ref": "#/$defs/a"}, {"pattern": "b$"}],
        "$defs": {"a": {"type": "string", "pattern": "^a"}},
    },
    "keywords of older drafts": object_schema(
        additionalProperties={
            "anyOf": [
                {"type": "number", "minimum": 1, "exclusiveMinimum": True},
                {"type": "array", "items": [STRING], "additionalItems": False},
            ]
        },
        maxProperties=2,
    ),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_schemas_that_only_llguidance_can_express_are_exported(name: str) -> None:
    parsed = parse(EXPORTED[name] | {"title": "x", "x-guidance": {"lenient": True}})
    assert isinstance(parsed.root, LlguidanceSchema)
    assert (parsed.definitions, parsed.warnings) == ((), ())
    schema = json.loads(parsed.root.schema)
    assert not {"title", "x-guidance"} & schema.keys()
    assert set(re.findall(r"#/\$defs/(\w+)", parsed.root.schema)) == set(schema.get("$defs", ()))
    assert schema["type"] in (["object"], ["string"])


def test_unenforced_keywords_are_not_exported() -> None:
    patterns = {"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}
    parsed = parse({"type": "string", "format": "iri", **patterns}, strict=False)
    assert isinstance(parsed.root, LlguidanceSchema)
    assert json.loads(parsed.root.schema) == {"type": ["string"], **patterns}
    assert parsed.warnings == (f"`{PARAM}`: `/format` is not enforced.",)


def test_objects_whose_order_llguidance_would_fix_are_not_exported() -> None:
    patterns = dict.fromkeys("abcde", STRING)
    properties = {"a": STRING, "b": STRING}
    schema = object_schema(patternProperties=patterns, properties=properties)
    assert parse_error(schema).code == "unsupported_keyword"


def test_bounds_of_integers_are_kept() -> None:
    integer = {"type": "integer", "minimum": 2**53 + 1, "maximum": 10**20}
    node = Number(True, str(2**53 + 1), str(10**20))
    array = {"type": "array", "items": integer, "maxItems": 10**9}
    assert parse(array) == ParsedSchema(Array((), node, max_items=limits.MAX_ITEMS))


# pattern properties

PATTERN_OBJECTS: dict[str, tuple[Any, Object]] = {
    "closed object": (
        object_schema(patternProperties={"^x": STRING}, additionalProperties=False),
        Object(
            additional=NOTHING,
            patterns=("^x",),
            pattern_properties=((KeyPattern(("^x",)), String()),),
        ),
    ),
    "a forbidden pattern": (
        object_schema(patternProperties={"^x": False}),
        Object(patterns=("^x",)),
    ),
    "disjoint patterns": (
        object_schema(patternProperties={"^x": STRING, "^y": {"type": "null"}}),
        Object(
            patterns=("^x", "^y"),
            pattern_properties=(
                (KeyPattern(("^x",), ("^y",)), String()),
                (KeyPattern(("^y",), ("^x",)), NULL),
            ),
        ),
    ),
    "overlapping patterns": (
        object_schema(patternProperties={"x": {"type": ["string", "null"]}, "y": STRING}),
        Object(
            patterns=("x", "y"),
            pattern_properties=(
                (KeyPattern(("x",), ("y",)), AnyOf((String(), NULL))),
                (KeyPattern(("y",), ("x",)), String()),
                (KeyPattern(("x", "y")), String()),
            ),
        ),
    ),
    "properties that match a pattern": (
        object_schema(
            properties={"x1": {"minLength": 2}, "z": STRING},
            patternProperties={"^x": STRING},
            additionalProperties={"type": "null"},
            required=["x2", "y"],
        ),
        Object(
            (("x1", String(min_length=2)), ("z", String()), ("x2", String()), ("y", NULL)),
            frozenset({"x2", "y"}),
            NULL,
            ("^x",),
            ((KeyPattern(("^x",)), String()),),
        ),
    ),
}


@pytest.mark.parametrize("name", PATTERN_OBJECTS)
def test_pattern_properties(name: str) -> None:
    schema, node = PATTERN_OBJECTS[name]
    parsed = parse(schema)
    assert parsed == ParsedSchema(LlguidanceSchema(json.dumps({"type": ["object"]}), node))


def test_recursive_pattern_properties() -> None:
    schema = object_schema(patternProperties={"^x": {"$ref": "#"}}, additionalProperties=False)
    root = parse(schema).root
    assert isinstance(root, LlguidanceSchema)
    assert isinstance(root.json_node, Object)
    assert root.json_node.pattern_properties == ((KeyPattern(("^x",)), SchemaReference("")),)


def test_only_the_inexpressible_part_is_exported() -> None:
    parsed = parse(object_schema(properties={"a": STRING, "b": object_schema(maxProperties=2)}))
    assert isinstance(parsed.root, Object)
    assert parsed.root.properties[0] == ("a", String())
    assert isinstance(dict(parsed.root.properties)["b"], LlguidanceSchema)


# references


def test_recursive_definitions_keep_their_names() -> None:
    inner = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    node = object_schema(properties={"v": STRING, "next": inner}, required=["v", "next"])
    parsed = parse({"$ref": "#/$defs/node", "$defs": {"node": node}})
    (name, definition), *rest = parsed.definitions
    assert not rest
    next_node = AnyOf((SchemaReference(name), NULL))
    assert definition == Object((("v", String()), ("next", next_node)), frozenset({"v", "next"}))
    assert parsed.root == definition


def test_references_to_the_root() -> None:
    schema = object_schema(properties={"all": {"type": "array", "items": {"$ref": "#"}}})
    parsed = parse(schema)
    (name, definition), *_ = parsed.definitions
    assert definition == parsed.root == Object((("all", Array((), SchemaReference(name))),))


def test_a_redundant_type_beside_a_recursive_reference() -> None:
    parsed = parse(object_schema(properties={"a": {"type": "object", "$ref": "#"}}))
    assert parsed.root == Object((("a", SchemaReference(parsed.definitions[0][0])),))


def test_recursive_options_are_distinguished_by_a_discriminator() -> None:
    def tagged_object(tag: str) -> dict[str, Any]:
        options = {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"type": "null"}]}
        return object_schema(properties={"k": {"const": tag}, "of": options}, required=["k"])

    parsed = parse(
        {"$ref": "#/$defs/x", "$defs": {"x": tagged_object("x"), "y": tagged_object("y")}}
    )
    assert len(parsed.definitions) == 2


def test_small_definitions_are_inlined() -> None:
    large = object_schema(properties={name: {"type": ["string", "null"]} for name in "abcdef"})
    schema = object_schema(
        properties={"x": {"$ref": "#/$defs/large"}, "y": {"$ref": "#/$defs/large"}}
        | {"p": {"$ref": "#/$defs/small"}, "q": {"$ref": "#/$defs/small"}},
        **{"$defs": {"large": large, "small": {"type": "string", "minLength": 3}}},
    )
    parsed = parse(schema)
    assert [name for name, _ in parsed.definitions] == ["/$defs/large"]
    assert isinstance(parsed.root, Object)
    assert dict(parsed.root.properties)["p"] == String(3)


def test_a_long_chain_of_definitions() -> None:
    definitions = {
        f"d{index}": object_schema(properties={"next": {"$ref": f"#/$defs/d{index + 1}"}})
        for index in range(1500)
    }
    parsed = parse({"$ref": "#/$defs/d0", "$defs": definitions | {"d1500": STRING}})
    assert len(parsed.definitions) > 1000


# tools


@pytest.mark.parametrize("schema", [None, {}])
def test_a_tool_without_parameters(schema: Any) -> None:
    assert parse(schema, for_tool=True) == ParsedSchema(closed_object())


TOOL_PARAMETERS: list[tuple[Any, Node]] = [
    ({"type": "dict", "properties": {"a": {"type": "str"}}}, Object((("a", String()),))),
    (
        object_schema(properties={"a": {"type": "list", "items": {"type": "int"}}}),
        Object((("a", Array((), INTEGER)),)),
    ),
    (
        object_schema(properties={"a": {"type": ["float", "bool"]}}),
        Object((("a", AnyOf((Number(), BOOLEAN))),)),
    ),
    ({"type": ["object", "null"]}, Object()),
    ({"anyOf": [{"type": "null"}, OBJECT]}, Object((("a", String()),))),
    ({"description": "anything"}, Object()),
    (True, Object()),
    ({"$ref": "#/$defs/a", "$defs": {"a": OBJECT}}, Object((("a", String()),))),
]


@pytest.mark.parametrize(("schema", "node"), TOOL_PARAMETERS)
def test_the_parameters_of_a_tool(schema: Any, node: Node) -> None:
    assert parse(schema, for_tool=True) == ParsedSchema(node)


@pytest.mark.parametrize("schema", [STRING, {"type": ["array", "null"]}, {"const": 3}])
def test_parameters_that_allow_no_object_are_rejected(schema: Any) -> None:
    error = parse_error(schema, for_tool=True)
    assert error.code == "invalid_schema"
    assert error.message == f"`{PARAM}` must allow an object."


def test_type_synonyms_are_only_for_tools() -> None:
    assert parse_error({"type": "dict"}).code == "invalid_schema"
    assert parse_error({"type": "thing"}, for_tool=True).code == "invalid_schema"
