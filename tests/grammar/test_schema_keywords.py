"""Schemas and the values that their grammars accept: with `strict`, exactly the valid ones.

`jsonschema` is the judge. The tables name a case for each keyword; random schemas combine them.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dragoman.testing.grammars import match_grammar
from tests.schema_cases import grammar
from tests.support.random_schemas import Judge, list_spellings

TEXT = {"type": "string"}
PETS = {"enum": ["cat", "dog", "cow"]}


def make_object(required: str = "", /, **keywords: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), **keywords}


AREA = make_object(
    properties={name: {"type": "number"} for name in ("radius", "length", "width")},
    oneOf=[{"required": ["radius"]}, {"required": ["length", "width"]}],
)
CARD = make_object(
    properties={"card": TEXT, "address": TEXT, "name": TEXT}, additionalProperties=False
)
PAYMENT = make_object(
    "kind",
    properties={"kind": {"enum": ["card", "cash"]}, "number": TEXT},
    **{
        "if": {"properties": {"kind": {"const": "card"}}},
        "then": {"required": ["number"]},
        "else": {"properties": {"number": False}},
    },
)
EXACT: dict[str, tuple[Any, list[Any]]] = {
    "properties in any order": (
        make_object("a b", properties={"a": {"type": "integer"}, "b": TEXT, "c": PETS}),
        [dict(pairs) for pairs in permutations([("a", 1), ("b", "x"), ("c", "cat"), ("d", None)])]
        + [{"b": "x"}, {"a": 1, "b": 2}, {"c": "cat", "b": "", "a": "1"}],
    ),
    "members of a const in any order": (
        {"const": {"a": 1, "b": [True, {"c": 2, "d": 3}]}},
        [{"b": [True, {"d": 3.0, "c": 2}], "a": 1.0}, {"a": 1}, {"a": 1, "b": [True, {"c": 2}]}],
    ),
    "dependentRequired": (
        CARD | {"dependentRequired": {"card": ["address", "name"]}},
        [{}, {"name": "x"}, {"card": "1"}, {"address": "x", "card": "1", "name": "y"}],
    ),
    "dependentSchemas": (
        CARD | {"dependentSchemas": {"card": {"properties": {"name": {"const": "x"}}}}},
        [{"name": "y"}, {"card": "1", "name": "y"}, {"name": "x", "card": "1"}, {"card": ""}],
    ),
    "oneOf of required properties": (
        AREA,
        [
            {"radius": 1},
            {"width": 2, "length": 1},
            {"radius": 1, "length": 1},
            {"length": 1},
            {},
            {"width": 1, "radius": 1, "length": 1},
        ],
    ),
    "oneOf that overlaps": (
        {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 6}]},
        [2, 3, 5, 6, 7, 7.0, "7"],
    ),
    "oneOf of open and closed objects": (
        {
            "oneOf": [
                make_object("a", properties={"a": TEXT}, additionalProperties=False),
                make_object("a", properties={"a": TEXT, "b": TEXT}, additionalProperties=False),
            ]
        },
        [{"a": ""}, {"a": "", "b": ""}, {"b": ""}, {"b": "", "a": "x"}],
    ),
    "not": (
        make_object("a", **{"not": {"required": ["b"]}}),
        [{"a": 1}, {"a": 1, "b": 2}, {"b": 1}],
    ),
    "not a text": (
        {"type": "string", "not": {"enum": ["cat", 'a "b"\n']}},
        ["cat", "ca", "cats", "", 'a "b"\n', 'a "b"', "\n"],
    ),
    "not a pattern": (
        {"type": "string", "not": {"pattern": "^a|b$"}},
        ["", "a", "xb", "xbx", 'x"', "\\", "ä"],
    ),
    "not a number": ({"type": "integer", "not": {"const": 3}}, [2, 3, 3.0, 4, -3]),
    "twice not": ({"type": "string", "not": {"not": {"minLength": 2}}}, ["", "a", "ab"]),
    "if": (
        PAYMENT,
        [
            {"kind": "card"},
            {"number": "1", "kind": "card"},
            {"kind": "cash"},
            {"kind": "cash", "number": "1"},
            {"kind": "x"},
        ],
    ),
    "uniqueItems": (
        {"type": "array", "items": PETS, "uniqueItems": True, "minItems": 1, "maxItems": 2},
        [[], ["cat"], ["dog", "cat"], ["cat", "cat"], ["cow", "cat", "dog"], ["cat", "dog", "cat"]],
    ),
    "contains": (
        {"type": "array", "contains": {"type": "integer"}, "maxItems": 3},
        [[], ["x"], [1], ["x", 1, "y"], ["x", "y", "z"], [1, 2, 3], [1, "x", "y", "z"]],
    ),
    "number of properties": (
        make_object("a", properties={"b": TEXT}, minProperties=2, maxProperties=3),
        [
            {"a": 1},
            {"a": 1, "b": ""},
            {"c": 1, "a": 2},
            {"c": 1, "b": "", "a": 2},
            {"a": 1, "b": "", "c": 1, "d": 1},
            {"b": "", "c": 1},
        ],
    ),
    "propertyNames": (
        {"type": "object", "propertyNames": {"pattern": "^[a-c]", "maxLength": 2}},
        [{}, {"a": 1}, {"bc": 1, "c": None}, {"abc": 1}, {"x": 1}, {"a": 1, "d": 1}],
    ),
    "patternProperties in two parts": (
        {"type": "object"}
        | {"allOf": [{"patternProperties": {p: v}} for p, v in (("^a", TEXT), ("b$", PETS))]},
        [{"a": "x", "b": "cat"}, {"ab": "x"}, {"ab": "cow"}, {"b": "x"}, {"a": 1}, {"c": 1}],
    ),
    "patternProperties beside additionalProperties": (
        make_object(
            properties={"a1": {"maxLength": 1}},
            patternProperties={"^a": TEXT},
            additionalProperties={"type": "null"},
        ),
        [{"a1": "x"}, {"a1": "xy"}, {"a2": "xy"}, {"a2": None}, {"b": None, "a2": ""}, {"b": ""}],
    ),
    "an empty pattern of names": (
        make_object(patternProperties={"": {"type": "integer"}}),
        [{}, {"a": 1}, {"": 1, "b": 2}, {"a": "x"}],
    ),
    "unevaluatedItems": (
        {"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False},
        [[], ["a"], [1], ["a", "b"]],
    ),
    "integers": (
        {"type": "integer", "minimum": -2, "maximum": 120},
        [-3, -2, -2.0, 0, 0.0, 7.0, 7.5, 119, 120, 120.0, 121, 1e2, 1e20],
    ),
    "numbers with an exponent": (
        {"type": "number", "minimum": 0},
        [1e-7, 2.5e-9, -1e-7, 1e20, 1.5e300, -1e20, 0, 0.5, -0.5],
    ),
    "integers of 64 bits": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        [0, 10**17, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**20],
    ),
    "integers with a large bound": (
        {"type": "integer", "minimum": 1e20, "maximum": 1e40},
        [10**20, 10**20 - 1, 10**25, 1, -(10**25)],
    ),
    "numbers with large bounds": (
        {"type": "number", "exclusiveMinimum": -1e18, "maximum": 1e20},
        [1e19, 10**19, 10**20, 10**20 + 1, 2e20, -5e17, -(10**17) - 1, -(10**18), -1e18, -1e30],
    ),
    "numbers with small bounds": (
        {"type": "number", "minimum": 1e-10, "exclusiveMaximum": 1e-5},
        [1e-10, 1e-9, 2.5e-9, 9e-6, 1e-11, 1e-5, 2e-5, 0, -1e-9, 1],
    ),
    "values of an enum": (
        {"enum": [1, 2.0, "ä", None, 1e17]},
        [1, 1.0, 2, 2.0, 3, "ä", None, 1e17],
    ),
    "names of any length and with escapes": (
        make_object(properties={"a": TEXT, 'q"': TEXT}),
        [{"": 1}, {'"': 1, "\n": 2}, {"x" * 300: 1}, {'q"': 1}, {'q"': "", "\\": None}, {"a": 1}],
    ),
    "a recursive schema": (
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": make_object("v", properties={"n": {"$ref": "#/$defs/n"}})},
        },
        [{"n": {"n": {"v": 1}, "v": 2}, "v": 3}, {"v": 1}, {"n": {"v": 1}}, {"v": 1, "n": {}}],
    ),
    "no type": ({"maxLength": 2, "minimum": 3}, ["ab", "abc", 3, 2, None, [], {"a": 1}]),
}


@pytest.mark.parametrize("name", EXACT)
def test_grammars_accept_valid_values_only(name: str) -> None:
    schema, values = EXACT[name]
    source, warnings = grammar(schema, strict=True)
    assert source is not None
    assert warnings == []
    for value in values:
        is_valid = Draft202012Validator(schema).is_valid(value)
        spellings = list_spellings(value)
        assert any(match_grammar(source, text)[0] for text in spellings) is is_valid, value


@pytest.mark.parametrize(
    ("schema", "warning"),
    [
        ({"type": "array", "uniqueItems": True}, "`/uniqueItems` is not enforced"),
        ({"type": "object", "minProperties": 3}, "`/minProperties` is not enforced"),
        ({"type": "string", "not": {"format": "date"}}, "`/not` is not enforced"),
        ({"properties": {"a": TEXT}}, "has no `type`; only `object` is allowed"),
        (
            make_object("a", properties={"a": TEXT}, **{"not": {"required": ["a"]}}),
            "`/not` is not enforced",
        ),
    ],
)
def test_what_is_not_enforced_is_reported(schema: Any, warning: str) -> None:
    _, warnings = grammar(schema, strict=False)
    assert [warning in text for text in warnings] == [True]


def test_many_properties_come_in_the_order_of_the_schema() -> None:
    names = [f"p{index}" for index in range(100)]
    schema = make_object(properties=dict.fromkeys(names, TEXT))
    source, warnings = grammar(schema, strict=False)
    assert source is not None
    assert [text.partition("`: ")[2] for text in warnings] == [
        "an object with more than 60 properties is written in the order of the schema."
    ]
    assert match_grammar(source, '{"p3": "", "p7": ""}')[0]
    assert not match_grammar(source, '{"p7": "", "p3": ""}')[0]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_schemas_are_enforced_or_reported(first: int) -> None:
    judge = Judge()
    assert [
        (seed, mistake)
        for seed in range(first, first + 50)
        for mistake in judge.find_mistakes(seed)
    ] == []
    assert judge.counts["plain: exact"] > 15
    assert judge.counts["valid values"] > 200
