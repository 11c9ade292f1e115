"""References by `$anchor`, `$id` and `$dynamicRef`; `jsonschema` is the judge of what they mean."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft201909Validator, Draft202012Validator

from dragoman.output.arguments.schemas.parameter_types import read_parameter_schema
from dragoman.output.arguments.schemas.schema_references import localize_references
from dragoman.testing.grammars import match_grammar
from tests.schema_cases import grammar
from tests.support.random_schemas import list_spellings
from tests.support.schema_parsing import parse_error

TEXT, COUNT = {"type": "string"}, {"type": "integer"}
DRAFTS: dict[str, Any] = {
    "http://json-schema.org/draft-07/schema#": Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": Draft201909Validator,
}
DRAFT_7, DRAFT_2019 = DRAFTS


def refer(reference: str, keyword: str = "$ref", /, **keywords: Any) -> dict[str, Any]:
    """A schema of a property `a` that is a reference."""
    properties = {"a": {keyword: reference}}
    return {"type": "object", "properties": properties, "additionalProperties": False, **keywords}


def make_list(identifier: str, **definitions: Any) -> dict[str, Any]:
    """An array whose items are of a type that a schema around it may replace."""
    return {
        "$id": identifier,
        "type": "array",
        "items": {"$dynamicRef": "#item"},
        "$defs": {"default": {"$dynamicAnchor": "item", **TEXT}, **definitions},
    }


TREE = {
    "type": "object",
    "properties": {"value": COUNT, "children": {"type": "array", "items": {"$dynamicRef": "#n"}}},
    "additionalProperties": False,
    "$dynamicAnchor": "n",
}
A_VALUES = [{"a": 1}, {"a": "x"}, {}, {"a": None}]
TREES = [{"value": 1, "children": [{"children": [{"value": 2}]}]}, {"children": [{"value": "x"}]}]
EXACT: dict[str, tuple[Any, list[Any]]] = {
    "$anchor": (refer("#count", **{"$defs": {"x": {"$anchor": "count", **COUNT}}}), A_VALUES),
    "$anchor in a property": (
        refer("#b") | {"properties": {"a": {"$ref": "#b"}, "b": {"$anchor": "b", **TEXT}}},
        [*A_VALUES, {"b": 1}, {"b": "x"}],
    ),
    "an anchor of a draft before 2019": (
        refer("#count", **{"$schema": DRAFT_7, "definitions": {"x": {"$id": "#count", **COUNT}}}),
        A_VALUES,
    ),
    "an anchor of the root": (
        refer("#root", **{"$anchor": "root"}),
        [{"a": {"a": {}}}, {"a": 1}, {}],
    ),
    "$id": (refer("count", **{"$defs": {"x": {"$id": "count", **COUNT}}}), A_VALUES),
    "$id below the root's": (
        refer("count.json", **{"$id": "https://a.b/c/d.json"})
        | {"$defs": {"x": {"$id": "/c/count.json", **COUNT}}},
        A_VALUES,
    ),
    "the root's $id": (
        refer("https://a.b/c#/$defs/x", **{"$id": "https://a.b/c", "$defs": {"x": COUNT}}),
        A_VALUES,
    ),
    "a URN": (
        refer("urn:x:count#c", **{"$id": "urn:x:root"})
        | {"$defs": {"x": {"$id": "urn:x:count", "$defs": {"y": {"$anchor": "c", **COUNT}}}}},
        A_VALUES,
    ),
    "a pointer inside another $id": (
        {"$defs": {"x": {"$id": "b", **refer("#/$defs/y"), "$defs": {"y": COUNT}}, "y": TEXT}}
        | {"$ref": "b"},
        A_VALUES,
    ),
    "the same anchor in two resources": (
        refer("b#t", **{"$defs": {"x": {"$anchor": "t", **TEXT}}})
        | {"$defs": {"x": {"$anchor": "t", **TEXT}, "y": {"$id": "b", "$anchor": "t", **COUNT}}},
        A_VALUES,
    ),
    "a pointer with escapes": (
        refer("b#/$defs/50%25~1~0", **{"$defs": {"x": {"$id": "b", "$defs": {"50%/~": COUNT}}}}),
        A_VALUES,
    ),
    "a name of a property is no keyword": (
        {"type": "object", "properties": {"$id": {"$ref": "#t"}, "$anchor": {"const": "t"}}}
        | {"additionalProperties": False, "$defs": {"x": {"$anchor": "t", **TEXT}}},
        [{"$id": "x", "$anchor": "t"}, {"$id": 1}, {"$anchor": "u"}],
    ),
    "a value is no schema": (
        refer("#t", **{"$defs": {"x": {"$anchor": "t", **TEXT}, "y": {"const": {"$anchor": "t"}}}}),
        A_VALUES,
    ),
    "a tree": (TREE, TREES),
    "a tree without a dynamic anchor": (
        TREE | {"$anchor": "n", "$dynamicAnchor": "other"},
        TREES,
    ),
    "$dynamicRef as pointer": (
        refer("#/$defs/x", "$dynamicRef", **{"$defs": {"x": COUNT}}),
        A_VALUES,
    ),
    "$dynamicRef beside $ref": (
        refer("")
        | {
            "properties": {
                "a": {"$ref": "#/$defs/x", "$dynamicRef": "#y", "allOf": [{"minimum": 2}]}
            }
        }
        | {"$defs": {"x": COUNT, "y": {"$dynamicAnchor": "y", "type": "integer", "maximum": 4}}},
        [{"a": number} for number in (1, 2, 4, 5)],
    ),
    "a generic list": (make_list("list"), [["x"], [1], []]),
    "a list whose items the root replaces": (
        {"$id": "https://a.b/root", "$ref": "list"}
        | {"$defs": {"n": {"$dynamicAnchor": "item", **COUNT}, "l": make_list("list")}},
        [["x"], [1], []],
    ),
    "$recursiveRef": (
        {"$schema": DRAFT_2019, "$recursiveAnchor": True} | refer("#", "$recursiveRef"),
        [{"a": {"a": {}}}, {"a": 1}, {}],
    ),
    "$recursiveRef that the root replaces": (
        {
            "$schema": DRAFT_2019,
            "$id": "https://a.b/r",
            "$recursiveAnchor": True,
            "maxProperties": 0,
        }
        | {
            "type": "object",
            "properties": {"b": {"$ref": "t"}},
            "$defs": {"t": {"$id": "t", "$recursiveAnchor": True, **refer("#", "$recursiveRef")}},
        }
        | {"maxProperties": 1},
        [{"b": {"a": {"b": {}}}}, {"b": {"a": {"a": 1, "c": 2}}}, {"b": {"a": {"a": 1}}}],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_references_mean_what_a_validator_says(name: str) -> None:
    schema, values = EXACT[name]
    validator = DRAFTS.get(schema.get("$schema"), Draft202012Validator)(schema)
    source, warnings = grammar(schema, strict=True)
    assert source is not None
    assert warnings == []
    for value in values:
        accepts = any(match_grammar(source, text)[0] for text in list_spellings(value))
        assert accepts is validator.is_valid(value), value


CONTEXT_DEPENDENT = {
    "type": "object",
    "properties": {"a": {"$ref": "numbers"}, "b": {"$ref": "list"}},
    "additionalProperties": False,
    "$defs": {
        "list": make_list("list"),
        "numbers": {"$id": "numbers", "$ref": "list"}
        | {"$defs": {"n": {"$dynamicAnchor": "item", **COUNT}}},
    },
}


def test_a_reference_that_depends_on_the_way_to_it_is_reported() -> None:
    error = parse_error(CONTEXT_DEPENDENT)
    assert (error.code, "`/$defs/list/items/$dynamicRef`" in error.message) == (
        "unsupported_keyword",
        True,
    )
    source, warnings = grammar(CONTEXT_DEPENDENT, strict=False)
    assert source is not None
    assert ["`/$defs/list/items/$dynamicRef` is not enforced" in text for text in warnings] == [
        True
    ]


@pytest.mark.parametrize(
    "schema",
    [
        refer("#b", **{"$defs": {"x": {"$anchor": "c", **TEXT}}}),
        refer("#b", **{"$defs": {"x": {"$anchor": "b", **TEXT}, "y": {"$anchor": "b", **COUNT}}}),
        refer("b", **{"$defs": {"x": {"$id": "b", **TEXT}, "y": {"$id": "b", **COUNT}}}),
        refer("b#c", **{"$defs": {"x": {"$id": "b", **TEXT}}}),
        refer("https://a.b/c", **{"$id": "https://a.b/d"}),
        refer("b", **{"$id": "http://[", "$anchor": "b"}),
        refer("#" + "b" * 4000, **{"$defs": {"x": {"$anchor": "b" * 4000}}}),
        refer("b", **{"$defs": {"x": {"$id": "b" * 4000}}}),
    ],
)
def test_a_reference_without_one_target_is_refused(schema: Any) -> None:
    for strict in (True, False):
        error = parse_error(schema, strict=strict)
        assert "`/properties/a/$ref` must point into this schema" in error.message


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "a", "properties": {"n" * 50_000: {"anyOf": [{}] * 40_000}}},
        {"$id": "a", "$defs": {"n" * 50_000: {"$anchor": "b"}}, "anyOf": [{"$ref": "#b"}] * 9_000},
        {"$id": "a" * 2_000 + "/", "anyOf": [{"$id": "b"}] * 15_000},
        {"anyOf": [{"$id": str(n), "$dynamicAnchor": "a"} for n in range(3_000)]}
        | {"allOf": [{"$dynamicRef": f"{n}#a"} for n in range(3_000)]},
    ],
)
def test_long_names_do_not_multiply(schema: Any) -> None:
    """Such a schema is left as it is, before its pointers have filled the memory."""
    tracemalloc.start()
    try:
        localize_references(schema)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_arguments_get_the_types_of_anchors() -> None:
    schema = refer("#count", **{"$defs": {"x": {"$id": "#count", **COUNT}}})
    assert read_parameter_schema(schema).get_member("a").types == {"integer"}
