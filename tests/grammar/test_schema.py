"""Schemas as nodes: what each word comes to, what is refused, and that nothing gets wider."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from dragoman.errors import BadRequest
from dragoman.grammar.schema import keywords, limits
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
from dragoman.grammar.schema.schema_parser import parse_schema

PARAM = "response_format.json_schema.schema"
NOTHING = Nothing()


def reading(schema: Any, *, strict: bool = True, tool: bool = False) -> ParsedSchema:
    return parse_schema(schema, param=PARAM, strict=strict, for_tool=tool)


def refused(schema: Any, *, strict: bool = True, tool: bool = False) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        reading(schema, strict=strict, tool=tool)
    assert caught.value.param == PARAM
    assert caught.value.message.startswith(f"`{PARAM}`")
    return caught.value


def outcome(schema: Any, *, strict: bool = False, tool: bool = False) -> ParsedSchema | BadRequest:
    try:
        return reading(schema, strict=strict, tool=tool)
    except BadRequest as error:
        return error


def closed(*required: str, **members: Node) -> Object:
    return Object(tuple(members.items()), frozenset(required), NOTHING)


def values(*every: Any) -> Literals:
    return Literals(tuple(map(json.dumps, every)))


def an_object(**words: Any) -> dict[str, Any]:
    return {"type": "object", **words}


A = {"type": "string"}
INTEGER = Number(integer=True)

NODES: dict[str, tuple[Any, Node]] = {
    # whole schemas
    "true": (True, Anything()),
    "nothing said": ({}, Anything()),
    "only annotations": (
        {"title": "x", "description": "y", "default": 1, "examples": [2], "$comment": "z"}
        | {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://a.b/c"}
        | {"deprecated": True, "readOnly": True, "x-mine": 1, "contentMediaType": "text/html"}
        | {"discriminator": {"propertyName": "k"}, "nullable": True, "unheard-of": []},
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
    "each type has its words": (
        {"type": ["string", "integer", "null"], "minLength": 2, "minimum": 3, "minItems": 4},
        AnyOf((String(2), Number(True, "3"), NULL)),
    ),
    # words without a type
    "a text is meant": ({"maxLength": 3}, String(max_length=3)),
    "a text by its format": ({"format": "date"}, String(format="date")),
    "a number is meant": ({"minimum": 3}, Number(minimum="3")),
    "a list is meant": ({"items": A}, Array((), String())),
    "an object is meant": ({"required": ["a"]}, Object((("a", Anything()),), frozenset("a"))),
    "two kinds are meant": (
        {"minLength": 1, "minItems": 1},
        AnyOf((String(1), Array(min_items=1))),
    ),
    "what is meant gives way to what is said": (
        {"type": ["object", "null"], "anyOf": [{"required": ["a"]}]},
        AnyOf((Object((("a", Anything()),), frozenset("a")), NULL)),
    ),
    "what is meant gives way to another part": (
        {"allOf": [{"type": "string"}, {"minimum": 5}]},
        String(),
    ),
    # texts
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 5.0}, String(2, 5)),
    "a length without end": (
        {"type": "string", "maxLength": 10**9},
        String(0, limits.MAX_STRING_LENGTH),
    ),
    "a pattern": ({"type": "string", "pattern": "^a+$"}, String(pattern="^a+$")),
    "a class as ECMAScript has it": (
        {"type": "string", "pattern": r"^[[a&&b~]\[[^\]&]$"},
        String(pattern=r"^[\[a\&\&b\~]\[[^\]\&]$"),
    ),
    "a pattern with lengths": (
        {"type": "string", "pattern": "^a", "maxLength": 9},
        String(max_length=9, pattern="^a"),
    ),
    "formats are of texts": ({"type": "integer", "format": "int64"}, INTEGER),
    # numbers
    "bounds": ({"type": "number", "minimum": 0.5, "maximum": 2}, Number(False, "0.5", "2")),
    "bounds as they were written": ({"type": "integer", "minimum": 1.5}, Number(True, "1.5")),
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
    "bounds that nothing reaches": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        Number(True, str(-(10**17)), str(10**17)),
    ),
    "bounds are rounded inwards": (
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 7},
        Number(True, str(2**53 + 2), str(2**53 + 6)),
    ),
    # lists
    "items": (
        {"type": "array", "items": A, "minItems": 1, "maxItems": 3},
        Array((), String(), 1, 3),
    ),
    "first items": (
        {"type": "array", "prefixItems": [A, {"type": "null"}], "items": {"type": "integer"}},
        Array((String(), NULL), INTEGER),
    ),
    "first items of draft 4": (
        {"type": "array", "items": [A], "additionalItems": {"type": "null"}},
        Array((String(),), NULL),
    ),
    "no more items": (
        {"type": "array", "prefixItems": [A], "items": False},
        Array((String(),), NOTHING, 0, 1),
    ),
    "an item that cannot be": (
        {"type": "array", "prefixItems": [A, False, A]},
        Array((String(),), NOTHING, 0, 1),
    ),
    "no items": ({"type": "array", "maxItems": 0}, Array((), NOTHING, 0, 0)),
    # objects
    "members in order": (
        an_object(properties={"b": A, "a": {"type": "null"}}, required=["a"]),
        Object((("b", String()), ("a", NULL)), frozenset("a")),
    ),
    "no others": (an_object(properties={"a": A}, additionalProperties=False), closed(a=String())),
    "others": (an_object(additionalProperties=A), Object(additional=String())),
    "others, said otherwise": (an_object(unevaluatedProperties=False), closed()),
    "others, said otherwise and of no type": ({"unevaluatedProperties": False}, closed()),
    "a required member that is not declared": (
        an_object(required=["a"], additionalProperties=A),
        Object((("a", String()),), frozenset("a"), String()),
    ),
    "a member that may not be": (
        an_object(properties={"a": False}),
        Object((("a", NOTHING),)),
    ),
    "a member that may not be, nor any other": (
        an_object(properties={"a": False, "b": A}, additionalProperties=False),
        closed(b=String()),
    ),
    "names by list": (
        an_object(propertyNames={"enum": ["a", "b"]}, additionalProperties=A),
        closed(a=String(), b=String()),
    ),
    "names that are any": (an_object(propertyNames={"type": "string"}), Object()),
    "as many members as are required": (
        an_object(properties={"a": A, "b": A}, required=["b"], maxProperties=1),
        closed("b", b=String()),
    ),
    "no members": (an_object(properties={"a": A}, maxProperties=0), closed()),
    "all members there are": (
        an_object(properties={"a": A, "b": A}, additionalProperties=False, minProperties=2),
        closed("a", "b", a=String(), b=String()),
    ),
    "one of the members": (
        an_object(properties={"a": A, "b": A}, additionalProperties=False, minProperties=1),
        AnyOf((closed("a", a=String(), b=String()), closed("b", a=String(), b=String()))),
    ),
    "counts that say nothing": (
        an_object(properties={"a": A}, required=["a"], minProperties=1)
        | {"additionalProperties": False, "maxProperties": 3, "patternProperties": {}},
        closed("a", a=String()),
    ),
    # values
    "enum": ({"enum": ["a", 1, None]}, values("a", 1, None)),
    "const": ({"const": {"a": [1]}}, values({"a": [1]})),
    "values of a type": (
        {"type": ["string", "integer"], "enum": ["a", 1, 1.5, 2.0]},
        values("a", 1, 2.0),
    ),
    "values in bounds": ({"enum": [1, 5, 9], "minimum": 2, "exclusiveMaximum": 9}, values(5)),
    "values of a length": ({"enum": ["a", "bb", 3], "minLength": 2}, values("bb", 3)),
    "values of a pattern": ({"enum": ["ab", "bb"], "pattern": "^a"}, values("ab")),
    "values of a shape": (
        {"enum": [{"a": 1}, {"a": "x"}, {}], **an_object(properties={"a": A}, required=["a"])},
        values({"a": "x"}),
    ),
    "both kinds of values": ({"enum": [1, 2, 3], "const": 2.0}, values(2)),
    # choices
    "anyOf": ({"anyOf": [A, {"type": "null"}]}, AnyOf((String(), NULL))),
    "one choice": ({"anyOf": [A]}, String()),
    "choices that are the same": ({"anyOf": [A, A]}, String()),
    "choices of values": (
        {"anyOf": [{"const": 1}, A, {"const": 2}]},
        AnyOf((values(1, 2), String())),
    ),
    "a choice of anything": ({"anyOf": [A, {}]}, Anything()),
    "a choice that cannot be": ({"anyOf": [False, A]}, String()),
    "choices in choices": (
        {"anyOf": [{"anyOf": [A, {"type": "null"}]}, {"type": "integer"}]},
        AnyOf((String(), NULL, INTEGER)),
    ),
    "choices beside a type": (
        {"type": "string", "anyOf": [{"minLength": 2}, {"type": "null"}]},
        String(2),
    ),
    "choices of what is required": (
        an_object(properties={"a": A}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        AnyOf(
            (
                Object((("a", String()),), frozenset("a")),
                Object((("a", String()), ("b", Anything())), frozenset("b")),
            )
        ),
    ),
    "oneOf types": ({"oneOf": [A, {"type": "null"}]}, AnyOf((String(), NULL))),
    "oneOf values": ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, values(1, 2, 3)),
    "oneOf by a member": (
        {
            "oneOf": [
                an_object(properties={"k": {"const": kind}, "a": A}, required=["a", "k"])
                for kind in "xy"
            ]
        },
        AnyOf(
            tuple(Object((("k", values(kind)), ("a", String())), frozenset("ak")) for kind in "xy")
        ),
    ),
    "oneOf by a member that only one has": (
        {"oneOf": [an_object(required=["a"]), an_object(properties={"a": False})]},
        AnyOf((Object((("a", Anything()),), frozenset("a")), Object((("a", NOTHING),)))),
    ),
    "oneOf ranges": (
        {"type": "integer", "oneOf": [{"maximum": 2}, {"minimum": 5}]},
        AnyOf((Number(True, maximum="2"), Number(True, minimum="5"))),
    ),
    "oneOf what is required": (
        an_object(properties={"a": A, "b": A}, oneOf=[{"required": ["a"]}, {"required": ["b"]}]),
        AnyOf(
            (
                Object((("a", String()), ("b", NOTHING)), frozenset("a")),
                Object((("a", NOTHING), ("b", String())), frozenset("b")),
            )
        ),
    ),
    # all of several
    "bounds of several": (
        {"allOf": [{"type": "number", "minimum": 1, "multipleOf": 4}]}
        | {"minimum": 0.5, "maximum": 90, "multipleOf": 6},
        Number(False, "1", "90", multiple_of="12"),
    ),
    "lengths of several": (
        {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 8, "minLength": 1}]},
        String(2, 8),
    ),
    "members of several": (
        an_object(
            properties={"a": {"type": ["string", "null"]}},
            allOf=[an_object(properties={"b": A, "a": A}, required=["b"])],
            required=["a"],
        ),
        Object((("a", String()), ("b", String())), frozenset("ab")),
    ),
    "others of several": (
        {"allOf": [an_object(properties={"a": A, "b": A}, additionalProperties=False)]}
        | an_object(properties={"a": {}}, additionalProperties={"type": ["string", "null"]}),
        closed(a=String(), b=String()),
    ),
    "items of several": (
        {"type": "array", "prefixItems": [A], "maxItems": 4}
        | {"allOf": [{"items": {"type": ["string", "null"]}, "minItems": 1}]},
        Array((String(),), AnyOf((String(), NULL)), 1, 4),
    ),
    "choices of several": (
        {"allOf": [{"type": ["string", "null"]}, {"type": ["null", "integer"]}]},
        NULL,
    ),
    # references
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": A}}, String()),
    "a reference with an annotation": (
        an_object(
            properties={"x": {"$ref": "#/definitions/a", "description": "x"}}, definitions={"a": A}
        ),
        Object((("x", String()),)),
    ),
    "a reference to any place": (
        an_object(properties={"x": {"$ref": "#/properties/y/items"}, "y": {"items": A}}),
        Object((("x", String()), ("y", Array((), String())))),
    ),
    "a reference into a list": (
        {"anyOf": [A, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
        AnyOf((String(), Array((), String()))),
    ),
    "a reference with escapes": (
        {"$ref": "#/$defs/a~1b~0c%20d%25", "$defs": {"a/b~c d%": A}},
        String(),
    ),
    "a reference with something beside it": (
        {"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string", "maxLength": 5}}},
        String(2, 5),
    ),
    "a reference in allOf": (
        {"allOf": [{"$ref": "#/$defs/a"}], "required": ["x"]}
        | {"$defs": {"a": an_object(properties={"x": A})}},
        Object((("x", String()),), frozenset("x")),
    ),
    "a choice that leads nowhere": (
        {"anyOf": [A, {"$ref": "#/$defs/a"}]}
        | {"$defs": {"a": an_object(properties={"a": {"$ref": "#/$defs/a"}}, required=["a"])}},
        String(),
    ),
    # ways to say nothing
    "words that say nothing": (
        {"type": "array", "uniqueItems": False, "not": False, "if": A, "unevaluatedItems": True}
        | {"dependentRequired": {}, "propertyNames": False, "contains": A, "minContains": 0},
        Array(),
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_what_a_schema_comes_to(name: str) -> None:
    schema, node = NODES[name]
    found = reading(schema)
    assert found == ParsedSchema(node)


INNER = {"type": "object", "properties": {"a": {"type": "string"}}}
WRONG: dict[str, tuple[Any, str]] = {
    "no schema": (5, f"`{PARAM}` must be a schema"),
    "none at all": (None, f"`{PARAM}` must be a schema"),
    "a list": ([], f"`{PARAM}` must be a schema"),
    "a number for a type": ({"type": 5}, "`/type` must be one of"),
    "an unknown type": (
        an_object(properties={"a": {"type": "str"}}),
        "`/properties/a/type` must be",
    ),
    "no type in a list": ({"type": []}, "`/type` must be one of"),
    "a type that is none": ({"type": [["string"]]}, "`/type` must be one of"),
    "properties that are a list": ({"properties": []}, "`/properties` must be an object"),
    "a property that is no schema": ({"properties": {"a/b": 1}}, "`/properties/a~1b` must be"),
    "required as a name": ({"required": "x"}, "`/required` must be a list of strings"),
    "required as a flag": ({"required": True}, "`/required` must be a list of strings"),
    "required numbers": ({"required": [1]}, "`/required` must be a list of strings"),
    "no values": ({"enum": []}, "`/enum` must be a non-empty list"),
    "no choices": ({"anyOf": []}, "`/anyOf` must be a non-empty list"),
    "a choice that is no schema": ({"anyOf": [{}, 3]}, "`/anyOf/1` must be a schema"),
    "no parts": ({"allOf": {}}, "`/allOf` must be a non-empty list"),
    "negative length": ({"minLength": -1}, "`/minLength` must be a non-negative integer"),
    "half a length": ({"maxLength": 1.5}, "`/maxLength` must be a non-negative integer"),
    "a length that is none": ({"minItems": True}, "`/minItems` must be a non-negative integer"),
    "a bound that is a text": ({"minimum": "3"}, "`/minimum` must be a number"),
    "a bound that is a flag": ({"maximum": True}, "`/maximum` must be a number"),
    "an exclusive bound that is a text": ({"exclusiveMinimum": "3"}, "`/exclusiveMinimum` must be"),
    "multiples of nothing": ({"multipleOf": 0}, "`/multipleOf` must be a number above 0"),
    "multiples of less": ({"multipleOf": -2}, "`/multipleOf` must be a number above 0"),
    "a pattern that is none": ({"pattern": 3}, "`/pattern` must be a string"),
    "a format that is none": ({"format": []}, "`/format` must be a string"),
    "items that are none": ({"items": 3}, "`/items` must be a schema"),
    "others that are none": ({"additionalProperties": "no"}, "`/additionalProperties` must be"),
    "names that are none": ({"patternProperties": []}, "`/patternProperties` must be"),
    "a reference that is none": ({"$ref": 3}, "`/$ref` must be a string"),
    "a reference to nowhere": (
        an_object(properties={"a": {"$ref": "#/$defs/b"}}),
        "`/properties/a/$ref` leads to nothing",
    ),
    "a reference past a list": ({"anyOf": [{"$ref": "#/anyOf/01"}]}, "`/anyOf/0/$ref` leads to"),
    "a reference elsewhere": ({"$ref": "https://a.b/c"}, "`/$ref` must lead to a place in this"),
    "a reference to an anchor": ({"$ref": "#a"}, "`/$ref` must lead to a place in this schema"),
    "a reference to no schema": ({"$ref": "#/enum", "enum": [1]}, "`/enum` must be a schema"),
    "a reference to itself": ({"$ref": "#"}, "`/$ref` refers only to itself"),
    "references to each other": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "refers only to itself",
    ),
    "a choice of itself": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [A, {"$ref": "#/$defs/a"}]}}},
        "`/$defs/a` refers only to itself",
    ),
    "not a number": ({"minimum": float("nan")}, "is not JSON"),
    "endless": ({"const": float("inf")}, "is not JSON"),
    "beyond numbers": ({"maximum": 10**400}, "a number that is out of range"),
    "a set": ({"enum": {1, 2}}, "is not JSON"),
    "half a character": ({"const": "\ud800"}, "is not JSON"),
    "false": (False, f"`{PARAM}` allows no value"),
    "not anything": ({"not": {}}, "allows no value"),
    "not anything, in short": ({"not": True}, "allows no value"),
    "lengths that cross": ({"type": "string", "minLength": 3, "maxLength": 2}, "allows no value"),
    "bounds that cross": ({"type": "number", "minimum": 3, "maximum": 2}, "allows no value"),
    "bounds that touch": (
        {"type": "number", "minimum": 3, "exclusiveMaximum": 3},
        "allows no value",
    ),
    "no integer in between": (
        {"type": "integer", "minimum": 1.2, "maximum": 1.8},
        "allows no value",
    ),
    "no multiple in between": (
        {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5},
        "allows no value",
    ),
    "a format that does not fit": (
        {"type": "string", "format": "uuid", "maxLength": 9},
        "allows no value",
    ),
    "fewer items than needed": (
        {"type": "array", "items": False, "minItems": 1},
        "allows no value",
    ),
    "no such value": ({"type": "string", "const": 5}, "allows no value"),
    "two types": ({"allOf": [A, {"type": "null"}]}, "allows no value"),
    "two values": ({"allOf": [{"const": 1}, {"const": True}]}, "allows no value"),
    "a required member that may not be": (
        an_object(required=["a"], additionalProperties=False),
        "allows no value",
    ),
    "more members than may be": (
        an_object(required=["a", "b"], maxProperties=1),
        "allows no value",
    ),
    "fewer members than must be": (
        an_object(properties={"a": A}, additionalProperties=False, minProperties=2),
        "allows no value",
    ),
    "a name that may not be": (
        an_object(propertyNames={"enum": ["a"]}, required=["b"]),
        "allows no value",
    ),
    "no finite value": (
        {"$ref": "#/$defs/a"}
        | {"$defs": {"a": an_object(properties={"a": {"$ref": "#/$defs/a"}}, required=["a"])}},
        "allows no value",
    ),
    "two patterns that exclude each other": (
        {"type": "string", "allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]},
        "allows no value",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_schema_is_refused(name: str, strict: bool) -> None:
    schema, words = WRONG[name]
    error = refused(schema, strict=strict)
    assert words in error.message
    assert error.code == "invalid_schema"


LOOSE: dict[str, tuple[Any, str, Node]] = {
    "not": ({"type": "string", "not": {"const": "a"}}, "/not", String()),
    "if": (an_object(**{"if": {"required": ["a"]}, "then": {"required": ["b"]}}), "/if", Object()),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "/uniqueItems", Array()),
    "contains": ({"type": "array", "contains": A}, "/contains", Array()),
    "unevaluatedItems": (
        {"type": "array", "unevaluatedItems": False},
        "/unevaluatedItems",
        Array(),
    ),
    "dependentRequired": (
        an_object(dependentRequired={"a": ["b"]}),
        "/dependentRequired",
        Object(),
    ),
    "dependentSchemas": (an_object(dependentSchemas={"a": {}}), "/dependentSchemas", Object()),
    "dependencies": (an_object(dependencies={"a": ["b"]}), "/dependencies", Object()),
    "propertyNames": (an_object(propertyNames={"pattern": "^a"}), "/propertyNames", Object()),
    "unevaluatedProperties": (
        an_object(allOf=[INNER], unevaluatedProperties=False),
        "/unevaluatedProperties",
        Object((("a", String()),)),
    ),
    "$dynamicRef": ({"$dynamicRef": "#a", "type": "string"}, "/$dynamicRef", String()),
    "$recursiveRef": ({"$recursiveRef": "#", "type": "string"}, "/$recursiveRef", String()),
    "$id inside": ({"items": {"$id": "https://a.b/c"}}, "/items/$id", Array()),
    "format": ({"type": "string", "format": "iri"}, "/format", String()),
    "format of no type": ({"format": "iri"}, "/format", Anything()),
    "lookahead": ({"type": "string", "pattern": "^(?=a)"}, "/pattern", String()),
    "backreference": ({"type": "string", "pattern": r"^(a)\1$"}, "/pattern", String()),
    "no pattern at all": ({"type": "string", "pattern": "("}, "/pattern", String()),
    "a class of two meanings": ({"type": "string", "pattern": "[+--]"}, "/pattern", String()),
    "an empty class": ({"type": "string", "pattern": "[]a]"}, "/pattern", String()),
    "a pattern too hard for a length": (
        {"type": "string", "pattern": "^(.*a.{500}){3}$", "maxLength": 5000},
        "/maxLength",
        String(pattern="^(.*a.{500}){3}$"),
    ),
    "a bound too far": ({"type": "integer", "minimum": 10**30}, "/minimum", INTEGER),
    "a multiple too fine": ({"type": "number", "multipleOf": 1e-300}, "/multipleOf", Number()),
    "choices that are not exclusive": (
        {"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 5}]},
        "/oneOf",
        AnyOf((String(2), String(max_length=5))),
    ),
    "choices that are exclusive by our reading only": (
        {"oneOf": [{"minLength": 3}, {"type": "number"}]},
        "/oneOf",
        AnyOf((String(3), Number())),
    ),
    "the same deeper inside": (
        {
            "oneOf": [
                an_object(properties={"a": {"minLength": 3}}, required=["a"]),
                an_object(properties={"a": {"type": "number"}}, required=["a"]),
            ]
        },
        "/oneOf",
        AnyOf(
            (
                Object((("a", String(3)),), frozenset("a")),
                Object((("a", Number()),), frozenset("a")),
            )
        ),
    ),
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
    "names that overlap in too many ways": (
        an_object(patternProperties=dict.fromkeys("abcde", A), additionalProperties=False),
        "/patternProperties",
        Object(additional=String()),
    ),
    "names by a pattern that cannot be read": (
        an_object(patternProperties={"a(?=b)": A}, additionalProperties=False),
        "/patternProperties",
        Object(additional=String()),
    ),
    "many members of any name": (an_object(minProperties=3), "/minProperties", Object()),
    "one more than must be there, which an escape could disguise": (
        an_object(required=["a"], minProperties=2),
        "/minProperties",
        Object((("a", Anything()),), frozenset("a")),
    ),
    "a member that an escape could disguise": (
        an_object(properties={"a": A}, required=["a"], maxProperties=2),
        "/maxProperties",
        Object((("a", String()),), frozenset("a")),
    ),
    "patterns of names that would have to be merged": (
        {"allOf": [an_object(patternProperties={one: A}) for one in ("^a", "^b")]},
        "/allOf/1",
        LlguidanceSchema(
            json.dumps({"type": ["object"]}),
            Object(patterns=("^a",), pattern_properties=((KeyPattern(("^a",)), String()),)),
        ),
    ),
    "a circle through a merge": (
        an_object(properties={"a": {"$ref": "#", "required": ["b"]}}),
        "/properties/a/$ref",
        Object((("a", Object((("b", Anything()),), frozenset("b"))),)),
    ),
    "deeper inside": (
        {"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"items": {"prefixItems": [{"not": A}]}}}},
        "/$defs/x~1y/items/prefixItems/0/not",
        Array((), Array((Anything(),))),
    ),
}


@pytest.mark.parametrize("name", LOOSE)
def test_what_cannot_be_enforced_is_refused_where_that_is_strict_and_told_elsewhere(
    name: str,
) -> None:
    schema, pointer, node = LOOSE[name]
    error = refused(schema)
    assert (error.code, f"`{pointer}`" in error.message) == ("unsupported_keyword", True)
    found = reading(schema, strict=False)
    assert found.root == node
    assert found.warnings == (f"`{PARAM}`: `{pointer}` is not enforced.",)


@pytest.mark.parametrize(
    "name",
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"],
)
def test_formats(name: str) -> None:
    assert reading({"type": "string", "format": name}) == ParsedSchema(String(format=name))


FOREIGN: dict[str, Any] = {
    "at most so many by pattern": an_object(
        patternProperties={"^x": A}, additionalProperties=False, maxProperties=2
    ),
    "at most so many": an_object(maxProperties=3),
    "at least one": an_object(minProperties=1, additionalProperties=A),
    "two patterns": {"type": "string", "pattern": "^a", "allOf": [{"pattern": "b$"}]},
    "a pattern of a definition": {
        "allOf": [{"$ref": "#/$defs/a"}, {"pattern": "b$"}],
        "$defs": {"a": {"type": "string", "pattern": "^a"}},
    },
    "a circle": an_object(
        additionalProperties={"$ref": "#/$defs/n"},
        maxProperties=2,
        **{"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}},
    ),
    "old words": an_object(
        additionalProperties={
            "anyOf": [
                {"type": "number", "minimum": 1, "exclusiveMinimum": True},
                {"type": "array", "items": [A], "additionalItems": False},
            ]
        },
        maxProperties=2,
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_only_the_engine_can_put_together(name: str) -> None:
    found = reading(FOREIGN[name] | {"title": "x", "x-guidance": {"lenient": True}})
    assert isinstance(found.root, LlguidanceSchema)
    assert (found.definitions, found.warnings) == ((), ())
    schema = json.loads(found.root.schema)
    assert not {"title", "x-guidance"} & schema.keys()
    assert set(re.findall(r"#/\$defs/(\w+)", found.root.schema)) == set(schema.get("$defs", ()))
    assert schema["type"] in (["object"], ["string"])


def test_what_is_left_out_is_left_out_for_the_engine_too() -> None:
    inner = {"type": "string", "not": A, "uniqueItems": True}
    found = reading(an_object(additionalProperties=inner, maxProperties=2), strict=False)
    assert isinstance(found.root, LlguidanceSchema)
    assert "not" not in found.root.schema
    assert found.warnings == (f"`{PARAM}`: `/additionalProperties/not` is not enforced.",)


def test_bounds_are_drawn_inwards_for_the_engine_too() -> None:
    far = {"type": "integer", "minimum": 2**53 + 1, "maximum": 10**20}
    long = {"type": "array", "items": far, "maxItems": 10**9}
    found = reading(an_object(additionalProperties=long, maxProperties=2))
    assert isinstance(found.root, LlguidanceSchema)
    drawn = json.loads(found.root.schema)["additionalProperties"]
    assert drawn["maxItems"] == limits.MAX_ITEMS
    bounds = {"minimum": 2**53 + 2, "maximum": keywords.MAX_BOUND}
    assert drawn["items"] == {"type": ["integer"]} | bounds


# names by patterns

PATTERNED: dict[str, tuple[Any, Object]] = {
    "no others": (
        an_object(patternProperties={"^x": A}, additionalProperties=False),
        Object(
            additional=NOTHING, patterns=("^x",), pattern_properties=((KeyPattern(("^x",)), String()),)
        ),
    ),
    "no type": (
        {"patternProperties": {"^x": A}},
        Object(patterns=("^x",), pattern_properties=((KeyPattern(("^x",)), String()),)),
    ),
    "one that no member may match": (
        an_object(patternProperties={"^x": False}),
        Object(patterns=("^x",)),
    ),
    "patterns that exclude each other": (
        an_object(patternProperties={"^x": A, "^y": {"type": "null"}}),
        Object(
            patterns=("^x", "^y"),
            pattern_properties=(
                (KeyPattern(("^x",), ("^y",)), String()),
                (KeyPattern(("^y",), ("^x",)), NULL),
            ),
        ),
    ),
    "patterns that do not": (
        an_object(patternProperties={"x": {"type": ["string", "null"]}, "y": A}),
        Object(
            patterns=("x", "y"),
            pattern_properties=(
                (KeyPattern(("x",), ("y",)), AnyOf((String(), NULL))),
                (KeyPattern(("y",), ("x",)), String()),
                (KeyPattern(("x", "y")), String()),
            ),
        ),
    ),
    "members that match one": (
        an_object(
            properties={"x1": {"minLength": 2}, "z": A},
            patternProperties={"^x": A},
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


@pytest.mark.parametrize("name", PATTERNED)
def test_names_by_patterns(name: str) -> None:
    schema, node = PATTERNED[name]
    found = reading(schema)
    assert found == ParsedSchema(LlguidanceSchema(json.dumps({"type": ["object"]}), node))


def test_circles_through_names_by_patterns() -> None:
    node = an_object(patternProperties={"^x": {"$ref": "#"}}, additionalProperties=False)
    found = reading(node).root
    assert isinstance(found, LlguidanceSchema)
    assert found.object_node is not None
    assert found.object_node.pattern_properties == ((KeyPattern(("^x",)), SchemaReference("")),)


def test_the_engine_takes_a_part_and_the_rest_stays_plain() -> None:
    found = reading(an_object(properties={"a": A, "b": an_object(maxProperties=2)}))
    assert isinstance(found.root, Object)
    assert found.root.properties[0] == ("a", String())
    assert isinstance(dict(found.root.properties)["b"], LlguidanceSchema)


# references


def test_circles_have_names() -> None:
    inner = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    node = an_object(properties={"v": A, "next": inner}, required=["v", "next"])
    found = reading({"$ref": "#/$defs/node", "$defs": {"node": node}})
    (name, defined), *rest = found.definitions
    assert not rest
    both = AnyOf((SchemaReference(name), NULL))
    assert defined == Object((("v", String()), ("next", both)), frozenset({"v", "next"}))
    assert found.root == defined


def test_the_root_can_be_gone_back_to() -> None:
    schema = an_object(properties={"all": {"type": "array", "items": {"$ref": "#"}}})
    found = reading(schema)
    (name, defined), *_ = found.definitions
    assert defined == found.root == Object((("all", Array((), SchemaReference(name))),))


def test_a_type_beside_a_circle_says_nothing_new() -> None:
    found = reading(an_object(properties={"a": {"type": "object", "$ref": "#"}}))
    assert found.root == Object((("a", SchemaReference(found.definitions[0][0])),))


def test_choices_in_a_circle_are_told_apart() -> None:
    def kind(name: str) -> dict[str, Any]:
        inner = {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}, {"type": "null"}]}
        return an_object(properties={"k": {"const": name}, "of": inner}, required=["k"])

    found = reading({"$ref": "#/$defs/x", "$defs": {"x": kind("x"), "y": kind("y")}})
    assert len(found.definitions) == 2


def test_what_is_used_more_than_once_has_a_name_unless_it_is_small() -> None:
    large = an_object(properties={name: {"type": ["string", "null"]} for name in "abcdef"})
    schema = an_object(
        properties={"x": {"$ref": "#/$defs/large"}, "y": {"$ref": "#/$defs/large"}}
        | {"p": {"$ref": "#/$defs/small"}, "q": {"$ref": "#/$defs/small"}},
        **{"$defs": {"large": large, "small": {"type": "string", "minLength": 3}}},
    )
    found = reading(schema)
    assert [name for name, _ in found.definitions] == ["/$defs/large"]
    assert isinstance(found.root, Object)
    assert dict(found.root.properties)["p"] == String(3)


def test_definitions_in_a_long_row() -> None:
    defined = {
        f"d{at}": an_object(properties={"next": {"$ref": f"#/$defs/d{at + 1}"}})
        for at in range(1500)
    }
    found = reading({"$ref": "#/$defs/d0", "$defs": defined | {"d1500": A}})
    assert len(found.definitions) > 1000


# tools


@pytest.mark.parametrize("schema", [None, {}])
def test_a_tool_without_parameters(schema: Any) -> None:
    assert reading(schema, tool=True) == ParsedSchema(closed())


SLOPPY: list[tuple[Any, Node]] = [
    ({"type": "dict", "properties": {"a": {"type": "str"}}}, Object((("a", String()),))),
    (
        an_object(properties={"a": {"type": "list", "items": {"type": "int"}}}),
        Object((("a", Array((), INTEGER)),)),
    ),
    (
        an_object(properties={"a": {"type": ["float", "bool"]}}),
        Object((("a", AnyOf((Number(), BOOLEAN))),)),
    ),
    ({"type": ["object", "null"]}, Object()),
    ({"anyOf": [{"type": "null"}, INNER]}, Object((("a", String()),))),
    ({"description": "anything"}, Object()),
    (True, Object()),
    ({"$ref": "#/$defs/a", "$defs": {"a": INNER}}, Object((("a", String()),))),
]


@pytest.mark.parametrize(("schema", "node"), SLOPPY)
def test_the_parameters_of_a_tool(schema: Any, node: Node) -> None:
    assert reading(schema, tool=True) == ParsedSchema(node)


@pytest.mark.parametrize("schema", [A, {"type": ["array", "null"]}, {"const": 3}])
def test_a_tool_whose_parameters_are_no_object(schema: Any) -> None:
    error = refused(schema, tool=True)
    assert error.code == "invalid_schema"
    assert error.message == f"`{PARAM}` must allow an object."


def test_sloppy_names_are_for_tools() -> None:
    assert refused({"type": "dict"}).code == "invalid_schema"
    assert refused({"type": "thing"}, tool=True).code == "invalid_schema"


# too much


def nested(levels: int, make: Any) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = make(schema)
    return schema


def chain(length: int, make: Any) -> dict[str, Any]:
    """Definitions, each made of a reference to the next."""
    defined = {f"d{at}": make({"$ref": f"#/$defs/d{at + 1}"}) for at in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": defined | {f"d{length}": an_object()}}


def in_property(schema: Any) -> Any:
    return an_object(properties={"a": schema})


LIMITS: dict[str, Any] = {
    "bytes": {"description": "x" * limits.MAX_SIZE},
    "levels": nested(limits.MAX_DEPTH, in_property),
    "levels of anything": {"default": nested(10_000, lambda inner: [inner])},
    "schemas": {"anyOf": [{}] * (limits.MAX_NODES + 1)},
    "properties": {"properties": {str(at): True for at in range(limits.MAX_PROPERTIES + 1)}},
    "values": {"enum": list(range(limits.MAX_ENUM_VALUES + 1))},
    "text of values": {"enum": ["x" * 1000 + str(at) for at in range(140)]},
    "length": {"minLength": limits.MAX_STRING_LENGTH + 1},
    "items": {"minItems": limits.MAX_ITEMS + 1},
    "members": {"minProperties": limits.MAX_ITEMS + 1},
    "pattern": {"pattern": "a" * (limits.MAX_PATTERN_LENGTH + 1)},
    "references in a row": chain(limits.MAX_DEPTH + 1, lambda one: one),
    "choices": nested(
        30,
        lambda one: an_object(
            properties={"x": one}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]
        ),
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits(name: str) -> None:
    error = refused(LIMITS[name], strict=False)
    assert error.code == "schema_too_complex"
    assert "is too complex: it has" in error.message


def test_as_deep_as_may_be() -> None:
    assert reading(nested(limits.MAX_DEPTH - 1, in_property)).warnings == ()


def test_there_are_only_so_many_sentences() -> None:
    found = reading({"prefixItems": [{"not": A}] * 500}, strict=False)
    assert len(found.warnings) == limits.MAX_WARNINGS + 1
    assert found.warnings[-1] == f"`{PARAM}`: {500 - limits.MAX_WARNINGS} more keywords are not enforced."


def test_pointers_are_shown_without_control_characters() -> None:
    found = reading({"properties": {"a\r\nb": {"not": A}}}, strict=False)
    assert found.warnings == (rf"`{PARAM}`: `/properties/a\r\nb/not` is not enforced.",)


WIDE = [an_object(properties={f"k{at}": A}, required=[f"k{at}"]) for at in range(30)]
TWICE = {"$ref": "#/$defs/a", "additionalProperties": {"$ref": "#/$defs/b"}}
HOSTILE: dict[str, Any] = {
    "deep lists": nested(10_000, lambda inner: [inner]),
    "deep objects": nested(10_000, in_property),
    "deep choices": nested(63, lambda inner: {"anyOf": [inner, A]}),
    "deep parts": nested(63, lambda inner: {"allOf": [inner], "minLength": 1}),
    "deep negations": nested(60, lambda inner: {"not": inner}),
    "choices times choices": {"allOf": [{"anyOf": WIDE} for _ in range(30)]},
    "exclusive choices times choices": {"allOf": [{"oneOf": WIDE} for _ in range(6)]},
    "choices in choices": nested(
        20, lambda inner: {"anyOf": [{"allOf": [inner]}, {"minLength": 3}]}
    ),
    "many exclusive choices": {
        "oneOf": [an_object(properties={"k": {"const": at}}, required=["k"]) for at in range(400)]
    },
    "many choices that overlap": {"oneOf": [{"minLength": at} for at in range(400)]},
    "doubling definitions": chain(
        40, lambda one: an_object(properties={"x": one, "y": one}, required=["x"])
    ),
    "doubling definitions with something beside": chain(
        40,
        lambda one: {
            "properties": {"x": one | {"minProperties": 1}, "y": one | {"maxProperties": 9}}
        },
    ),
    "doubling merges": {
        "allOf": [{"$ref": "#/$defs/d0"}, {"additionalProperties": {"$ref": "#/$defs/d0"}}],
        "$defs": chain(40, lambda one: an_object(properties={"x": one, "y": one}))["$defs"],
    },
    "doubling choices": chain(
        60,
        lambda one: an_object(
            properties={"x": one}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]
        ),
    ),
    "a chain for the engine": chain(
        1500, lambda one: an_object(properties={"x": one}, patternProperties={"^y": one})
    ),
    "circles of different lengths": {
        "allOf": [{"$ref": f"#/$defs/{name}0"} for name in "abcde"],
        "$defs": {
            f"{name}{at}": an_object(
                properties={"x": {"$ref": f"#/$defs/{name}{(at + 1) % size}"}},
                additionalProperties={"$ref": f"#/$defs/{name}{(at * 2 + 1) % size}"},
            )
            for name, size in zip("abcde", (3, 5, 7, 11, 13), strict=True)
            for at in range(size)
        },
    },
    "a circle of parts": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "a circle of parts with more": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"allOf": [{"$ref": "#/$defs/b"}], "minLength": 2},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, A], "maxLength": 9},
        },
    },
    "itself as what others may be": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": an_object(additionalProperties=TWICE),
            "b": an_object(additionalProperties=TWICE),
        },
    },
    "a circle of names": {
        "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}},
        "propertyNames": {"$ref": "#/$defs/a"},
    },
    "values in a circle": {
        "const": {"a": {"a": {"a": {}}}},
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"anyOf": [{"$ref": "#/$defs/a"}, {"additionalProperties": {"$ref": "#/$defs/a"}}]}
        },
    },
    "all the values": {"allOf": [{"enum": list(range(2400))}, {"enum": list(range(1, 2401))}]},
    "values and a pattern": {"enum": [f"v{at}" for at in range(4900)], "pattern": "^v.*[13579]$"},
    "large values": {"enum": [{"a": [at] * 20} for at in range(1200)], "minProperties": 1},
    "a hard pattern": {
        "type": "string",
        "pattern": "(x+x+)+y",
        "minLength": 4000,
        "maxLength": 5000,
    },
    "repeats in repeats": {"pattern": "((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}"},
    "many alternatives": {
        "pattern": "|".join(f".*{letter}.{{50}}" for letter in "abcdefghijkl"),
        "maxLength": 100,
    },
    "patterns that exclude each other": {
        "allOf": [
            {"type": "string", "pattern": f"^(a{{{prime}}})*a$"} for prime in (3, 5, 7, 11, 13)
        ]
    },
    "very many patterns": {"anyOf": [{"pattern": f"^{at}"} for at in range(8000)]},
    "very many names by pattern": {
        "patternProperties": {f"^x{at}": {} for at in range(3000)},
        "additionalProperties": False,
    },
    "very many first items": {"prefixItems": [{"minLength": at} for at in range(3000)]},
    "large bounds": {"minimum": -1e308, "maximum": 1e308, "multipleOf": 1e-308},
    "large multiples": {
        "allOf": [{"type": "integer", "multipleOf": 10**15 + at} for at in range(200)]
    },
    "all counts": {
        "minItems": 2000,
        "maxItems": 2000,
        "items": {"minItems": 2000, "items": {"minItems": 2000}},
    },
    "names that look like words": {"properties": {"$ref": {"$ref": "#/properties/$ref"}}},
    "a name of everything": an_object(properties={"\x00\U0001f600~/%": {"not": {"a": []}}}),
    "a long way": {"$ref": "#" + "/a" * 50_000},
    "a long name": {"$ref": "#/" + "%" * 100_000},
}


@pytest.mark.parametrize("tool", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_comes_there_is_an_answer(name: str, tool: bool) -> None:
    found = outcome(HOSTILE[name], tool=tool)
    if isinstance(found, BadRequest):
        assert found.code in ("invalid_schema", "schema_too_complex")
        assert len(found.message) < 1000


# Nothing gets wider: whatever is built from nodes is what the schema allows.

PATTERNS = ["^a", "b$", "^[ab]{2}$"]
NAMES = ["a", "b", "c"]


def small(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


def scalars() -> st.SearchStrategy[Any]:
    texts = st.sampled_from(["", "a", "b", "ab", "aab", "abcd"])
    numbers = st.sampled_from([0, 1, 2, 3, 6, -1, 0.5, 1.5, 2.0])
    return st.one_of(st.none(), st.booleans(), texts, numbers)


def some_values() -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner)
        ),
        max_leaves=5,
    )


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, *, typed: bool = False) -> Any:
    if draw(small(14)) == 0:
        return draw(st.booleans())

    def inner() -> st.SearchStrategy[Any]:
        return schemas(depth - 1, typed=typed)

    kinds = st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object"])
    number = st.sampled_from([0, 1, 2, 1.5, -1, 4])
    words: dict[str, Any] = {
        "minLength": small(3),
        "maxLength": small(4),
        "pattern": st.sampled_from(PATTERNS),
        "minimum": number,
        "maximum": number,
        "exclusiveMinimum": number,
        "exclusiveMaximum": number,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5]),
        "minItems": small(2),
        "maxItems": small(3),
        "required": st.lists(st.sampled_from(NAMES), max_size=2),
        "maxProperties": small(3),
        "minProperties": small(3),
        "enum": st.lists(some_values(), min_size=1, max_size=4),
        "const": some_values(),
        "$ref": st.sampled_from(["#/$defs/d0", "#/$defs/d1", "#/$defs/d2", "#"]),
        "propertyNames": st.sampled_from([{"enum": ["a", "b"]}, True, {"type": "string"}]),
    }
    if depth:
        several = st.lists(inner(), min_size=1, max_size=3)
        words |= {"allOf": several, "anyOf": several, "oneOf": several, "prefixItems": several}
        words |= {"items": inner(), "additionalProperties": inner()}
        words |= {"unevaluatedProperties": inner()}
        words["properties"] = st.dictionaries(st.sampled_from(NAMES), inner(), max_size=3)
        words["patternProperties"] = st.dictionaries(st.just("^a"), inner(), max_size=1)
    schema: dict[str, Any] = {}
    if typed or draw(small(4)):
        schema["type"] = draw(st.one_of(kinds, st.lists(kinds, min_size=1, max_size=3)))
    for word in draw(st.lists(st.sampled_from(sorted(words)), max_size=4, unique=True)):
        schema[word] = draw(words[word])
    return schema


@st.composite
def documents(draw: st.DrawFn, *, typed: bool = False) -> Any:
    root = draw(schemas(typed=typed))
    if isinstance(root, bool):
        return root
    return root | {"$defs": {f"d{at}": draw(schemas(2, typed=typed)) for at in range(3)}}


class NoValue(Exception):
    """No value was found in the few tries there are."""


class Builder:
    """Builds values of nodes, and tells whether a node allows one."""

    def __init__(self, checked: ParsedSchema, random: Random) -> None:
        self._defined = dict(checked.definitions)
        self._random = random

    def build(self, node: Node, depth: int = 12) -> Any:
        if depth == 0:
            raise NoValue
        match node:
            case Anything():
                return self._random.choice([None, True, 1, 0.5, "", "a", [], [1], {}, {"a": 1}])
            case Literals():
                return json.loads(self._random.choice(node.values))
            case String():
                return self._text(node)
            case Number():
                return self._number(node)
            case AnyOf():
                return self.build(self._random.choice(node.options), depth - 1)
            case SchemaReference():
                return self.build(self._defined[node.name], depth - 1)
            case Array():
                return self._array(node, depth)
            case Object():
                return self._object(node, depth)
        raise NoValue

    def _text(self, node: String) -> Any:
        pool = ["", "a", "b", "ab", "ba", "aaa", "aab", "abcd", "bbbb", "xyzzy"]
        return self._chosen([one for one in pool if fits(one, node)])

    def _number(self, node: Number) -> Any:
        pool = [-2, -1, -0.5, 0, 0.5, 1, 1.0, 1.5, 2, 2.5, 3, 4, 5, 6, 12]
        return self._chosen([one for one in pool if fits(one, node)])

    def _chosen(self, pool: list[Any]) -> Any:
        if not pool:
            raise NoValue
        return self._random.choice(pool)

    def _array(self, node: Array, depth: int) -> list[Any]:
        most = node.min_items + 3 if node.max_items is None else node.max_items
        count = self._random.randint(node.min_items, min(most, node.min_items + 3))
        found = []
        for at in range(count):
            inner = node.prefix_items[at] if at < len(node.prefix_items) else node.items
            try:
                found.append(self.build(inner, depth - 1))
            except NoValue:
                if at < node.min_items:
                    raise
                break
        return found

    def _object(self, node: Object, depth: int) -> dict[str, Any]:
        members = dict(node.properties)
        assert node.required <= members.keys()
        found = {}
        for name in [*members, *(name for name in [*NAMES, "ab", "zz"] if name not in members)]:
            if name not in node.required and self._random.random() < 0.5:
                continue
            try:
                found[name] = self.build(members.get(name, node.additional), depth - 1)
            except NoValue:
                if name in node.required:
                    raise
        return found

    def allows(self, node: Node, value: Any) -> bool:
        match node:
            case Anything():
                return True
            case Literals():
                return any(same(json.loads(text), value) for text in node.values)
            case String() | Number():
                return fits(value, node)
            case AnyOf():
                return any(self.allows(option, value) for option in node.options)
            case SchemaReference():
                return self.allows(self._defined[node.name], value)
            case Array():
                items = [*node.prefix_items, *[node.items] * 9]
                return (
                    isinstance(value, list)
                    and node.min_items
                    <= len(value)
                    <= (9 if node.max_items is None else node.max_items)
                    and all(map(self.allows, items, value))
                )
            case Object():
                members = dict(node.properties)
                return (
                    isinstance(value, dict)
                    and node.required <= value.keys()
                    and all(
                        self.allows(members.get(name, node.additional), one)
                        for name, one in value.items()
                    )
                )
        return False


def same(one: Any, other: Any) -> bool:
    return Draft202012Validator({"const": one}).is_valid(other)


def fits(value: Any, node: String | Number) -> bool:
    if isinstance(node, String):
        return (
            isinstance(value, str)
            and node.min_length
            <= len(value)
            <= (99 if node.max_length is None else node.max_length)
            and (node.pattern is None or re.search(node.pattern, value) is not None)
        )
    words = {
        "minimum": node.minimum,
        "maximum": node.maximum,
        "exclusiveMinimum": node.exclusive_minimum,
    }
    words |= {"exclusiveMaximum": node.exclusive_maximum, "multipleOf": node.multiple_of}
    schema = {word: json.loads(text) for word, text in words.items() if text is not None}
    schema["type"] = "integer" if node.integer else "number"
    return Draft202012Validator(schema).is_valid(value)


def holds_foreign(node: Node) -> bool:
    match node:
        case LlguidanceSchema():
            return True
        case AnyOf():
            return any(map(holds_foreign, node.options))
        case Array():
            return any(map(holds_foreign, (*node.prefix_items, node.items)))
        case Object():
            return any(holds_foreign(one) for _, one in node.properties) or holds_foreign(
                node.additional
            )
    return False


def exact(schema: Any) -> ParsedSchema | None:
    """A reading that neither leaves anything out nor leaves anything to the engine."""
    found = outcome(schema, strict=True)
    if isinstance(found, BadRequest):
        return None
    every = (found.root, *(node for _, node in found.definitions))
    return None if any(map(holds_foreign, every)) else found


EXAMPLES = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@EXAMPLES
@given(schema=documents(), seed=st.integers(0, 2**32))
def test_what_nodes_allow_the_schema_allows(schema: Any, seed: int) -> None:
    found = exact(schema)
    if found is None:
        return
    builder = Builder(found, Random(seed))
    for _ in range(5):
        try:
            value = builder.build(found.root)
        except NoValue:
            continue
        assert Draft202012Validator(schema).is_valid(value), value
        assert builder.allows(found.root, value)


def written(schema: str, random: Random) -> bytes | None:
    """What a schema lets be written, byte by byte; None where that does not end soon."""
    style = {"x-guidance": {"whitespace_flexible": False}}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(json.loads(schema) | style))
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    found = b""
    for _ in range(150):
        if matcher.is_accepting() and (matcher.is_stopped() or random.random() < 0.5):
            return found
        bias = matcher.compute_logit_bias()
        every = [byte for byte in range(256) if bias[byte]]
        plain = [byte for byte in every if byte in b'"{}[]:,ab019nultrefs']
        byte = random.choice(plain or every)
        matcher.consume_token(byte)
        found += bytes([byte])
    return None


@EXAMPLES
@given(
    schema=documents(),
    words=st.fixed_dictionaries(
        {"type": st.just("object"), "patternProperties": st.just({"^a": {"type": "string"}})},
        optional={"maxProperties": small(3), "additionalProperties": schemas(1)}
        | {"required": st.just(["a"])},
    ),
    seed=st.integers(0, 2**32),
)
def test_what_is_left_to_the_engine_the_schema_allows(
    schema: Any, words: dict[str, Any], seed: int
) -> None:
    whole = words if isinstance(schema, bool) else schema | words
    found = outcome(whole, strict=True)
    if isinstance(found, BadRequest) or not isinstance(found.root, LlguidanceSchema):
        return
    if found.root.object_node is not None:
        return
    random = Random(seed)
    for _ in range(3):
        text = written(found.root.schema, random)
        assert text is None or Draft202012Validator(whole).is_valid(json.loads(text)), text


@EXAMPLES
@given(schema=documents(typed=True), every=st.lists(some_values(), min_size=5, max_size=20))
def test_what_a_schema_with_types_allows_its_nodes_allow(schema: Any, every: list[Any]) -> None:
    found = exact(schema)
    if found is None:
        return
    builder = Builder(found, Random(0))
    for value in every:
        if Draft202012Validator(schema).is_valid(value):
            assert builder.allows(found.root, value), value


@EXAMPLES
@given(schema=documents())
def test_a_strict_reading_is_the_same_or_none(schema: Any) -> None:
    found = outcome(schema)
    if isinstance(found, BadRequest):
        assert refused(schema).code in (found.code, "unsupported_keyword")
        return
    if found.warnings:
        assert refused(schema).code == "unsupported_keyword"
    else:
        assert reading(schema) == found


@EXAMPLES
@given(
    schema=st.recursive(
        st.one_of(scalars(), st.floats(), st.text(max_size=3)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.sampled_from(sorted(keywords.ASSERTIONS)), inner, max_size=5),
        ),
        max_leaves=20,
    )
)
def test_anything_at_all_is_read_or_refused(schema: Any) -> None:
    for tool in (False, True):
        found = outcome(schema, tool=tool)
        if isinstance(found, BadRequest):
            assert found.code in ("invalid_schema", "schema_too_complex")
