"""Property-based tests: every value that the nodes of a schema allow matches the schema."""

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
from dragoman.grammar.schema import keywords
from dragoman.grammar.schema.nodes import (
    AnyOf,
    Anything,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Number,
    Object,
    ParsedSchema,
    SchemaReference,
    String,
)
from tests.support.schema_parsing import parse, parse_error, try_parse

pytestmark = pytest.mark.slow

PATTERNS = ["^a", "b$", "^[ab]{2}$"]
NAMES = ["a", "b", "c"]


def small_integers(maximum: int) -> st.SearchStrategy[int]:
    return st.integers(0, maximum)


def generate_scalars() -> st.SearchStrategy[Any]:
    texts = st.sampled_from(["", "a", "b", "ab", "aab", "abcd"])
    numbers = st.sampled_from([0, 1, 2, 3, 6, -1, 0.5, 1.5, 2.0])
    return st.one_of(st.none(), st.booleans(), texts, numbers)


def generate_values() -> st.SearchStrategy[Any]:
    return st.recursive(
        generate_scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner)
        ),
        max_leaves=5,
    )


@st.composite
def generate_schemas(draw: st.DrawFn, depth: int = 3, *, typed: bool = False) -> Any:
    if draw(small_integers(14)) == 0:
        return draw(st.booleans())

    def subschemas() -> st.SearchStrategy[Any]:
        return generate_schemas(depth - 1, typed=typed)

    types = st.sampled_from(["string", "number", "integer", "boolean", "null", "array", "object"])
    numbers = st.sampled_from([0, 1, 2, 1.5, -1, 4])
    keyword_values: dict[str, Any] = {
        "minLength": small_integers(3),
        "maxLength": small_integers(4),
        "pattern": st.sampled_from(PATTERNS),
        "minimum": numbers,
        "maximum": numbers,
        "exclusiveMinimum": numbers,
        "exclusiveMaximum": numbers,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5]),
        "minItems": small_integers(2),
        "maxItems": small_integers(3),
        "required": st.lists(st.sampled_from(NAMES), max_size=2),
        "maxProperties": small_integers(3),
        "minProperties": small_integers(3),
        "enum": st.lists(generate_values(), min_size=1, max_size=4),
        "const": generate_values(),
        "$ref": st.sampled_from(["#/$defs/d0", "#/$defs/d1", "#/$defs/d2", "#"]),
        "propertyNames": st.sampled_from([{"enum": ["a", "b"]}, True, {"type": "string"}]),
    }
    if depth:
        nonempty_lists = st.lists(subschemas(), min_size=1, max_size=3)
        keyword_values |= {
            "allOf": nonempty_lists,
            "anyOf": nonempty_lists,
            "oneOf": nonempty_lists,
            "prefixItems": nonempty_lists,
        }
        keyword_values |= {"items": subschemas(), "additionalProperties": subschemas()}
        keyword_values |= {"unevaluatedProperties": subschemas()}
        keyword_values["properties"] = st.dictionaries(
            st.sampled_from(NAMES), subschemas(), max_size=3
        )
        keyword_values["patternProperties"] = st.dictionaries(
            st.just("^a"), subschemas(), max_size=1
        )
    schema: dict[str, Any] = {}
    if typed or draw(small_integers(4)):
        schema["type"] = draw(st.one_of(types, st.lists(types, min_size=1, max_size=3)))
    for keyword in draw(st.lists(st.sampled_from(sorted(keyword_values)), max_size=4, unique=True)):
        schema[keyword] = draw(keyword_values[keyword])
    return schema


@st.composite
def generate_documents(draw: st.DrawFn, *, typed: bool = False) -> Any:
    root = draw(generate_schemas(typed=typed))
    if isinstance(root, bool):
        return root
    return root | {
        "$defs": {f"d{index}": draw(generate_schemas(2, typed=typed)) for index in range(3)}
    }


class NoValue(Exception):
    """No value was found in a few attempts."""


class ValueBuilder:
    """Builds values that nodes allow, and checks whether a node allows a value."""

    def __init__(self, parsed: ParsedSchema, random: Random) -> None:
        self._definitions = dict(parsed.definitions)
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
                return self._build_string(node)
            case Number():
                return self._build_number(node)
            case AnyOf():
                return self.build(self._random.choice(node.options), depth - 1)
            case SchemaReference():
                return self.build(self._definitions[node.name], depth - 1)
            case Array():
                return self._build_array(node, depth)
            case Object():
                return self._build_object(node, depth)
        raise NoValue

    def _build_string(self, node: String) -> Any:
        pool = ["", "a", "b", "ab", "ba", "aaa", "aab", "abcd", "bbbb", "xyzzy"]
        return self._choose([value for value in pool if matches_node(value, node)])

    def _build_number(self, node: Number) -> Any:
        pool = [-2, -1, -0.5, 0, 0.5, 1, 1.0, 1.5, 2, 2.5, 3, 4, 5, 6, 12]
        return self._choose([value for value in pool if matches_node(value, node)])

    def _choose(self, pool: list[Any]) -> Any:
        if not pool:
            raise NoValue
        return self._random.choice(pool)

    def _build_array(self, node: Array, depth: int) -> list[Any]:
        max_items = node.min_items + 3 if node.max_items is None else node.max_items
        count = self._random.randint(node.min_items, min(max_items, node.min_items + 3))
        items = []
        for index in range(count):
            item = node.prefix_items[index] if index < len(node.prefix_items) else node.items
            try:
                items.append(self.build(item, depth - 1))
            except NoValue:
                if index < node.min_items:
                    raise
                break
        return items

    def _build_object(self, node: Object, depth: int) -> dict[str, Any]:
        properties = dict(node.properties)
        assert node.required <= properties.keys()
        value = {}
        for name in [
            *properties,
            *(name for name in [*NAMES, "ab", "zz"] if name not in properties),
        ]:
            if name not in node.required and self._random.random() < 0.5:
                continue
            try:
                value[name] = self.build(properties.get(name, node.additional), depth - 1)
            except NoValue:
                if name in node.required:
                    raise
        return value

    def allows(self, node: Node, value: Any) -> bool:
        match node:
            case Anything():
                return True
            case Literals():
                return any(equal_json(json.loads(text), value) for text in node.values)
            case String() | Number():
                return matches_node(value, node)
            case AnyOf():
                return any(self.allows(option, value) for option in node.options)
            case SchemaReference():
                return self.allows(self._definitions[node.name], value)
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
                properties = dict(node.properties)
                return (
                    isinstance(value, dict)
                    and node.required <= value.keys()
                    and all(
                        self.allows(properties.get(name, node.additional), item)
                        for name, item in value.items()
                    )
                )
        return False


def equal_json(left: Any, right: Any) -> bool:
    return Draft202012Validator({"const": left}).is_valid(right)


def matches_node(value: Any, node: String | Number) -> bool:
    if isinstance(node, String):
        return (
            isinstance(value, str)
            and node.min_length
            <= len(value)
            <= (99 if node.max_length is None else node.max_length)
            and (node.pattern is None or re.search(node.pattern, value) is not None)
        )
    bounds = {
        "minimum": node.minimum,
        "maximum": node.maximum,
        "exclusiveMinimum": node.exclusive_minimum,
    }
    bounds |= {"exclusiveMaximum": node.exclusive_maximum, "multipleOf": node.multiple_of}
    schema = {keyword: json.loads(text) for keyword, text in bounds.items() if text is not None}
    schema["type"] = "integer" if node.integer else "number"
    return Draft202012Validator(schema).is_valid(value)


def contains_llguidance_schema(node: Node) -> bool:
    match node:
        case LlguidanceSchema():
            return True
        case AnyOf():
            return any(map(contains_llguidance_schema, node.options))
        case Array():
            return any(map(contains_llguidance_schema, (*node.prefix_items, node.items)))
        case Object():
            return any(
                contains_llguidance_schema(child) for _, child in node.properties
            ) or contains_llguidance_schema(node.additional)
    return False


def parse_exactly(schema: Any) -> ParsedSchema | None:
    """Parse a schema if all of it is enforced, and nothing is left to llguidance."""
    result = try_parse(schema, strict=True)
    if isinstance(result, BadRequest):
        return None
    nodes = (result.root, *(node for _, node in result.definitions))
    return None if any(map(contains_llguidance_schema, nodes)) else result


HYPOTHESIS_SETTINGS = settings(max_examples=80, suppress_health_check=list(HealthCheck))


@HYPOTHESIS_SETTINGS
@given(schema=generate_documents(), seed=st.integers(0, 2**32))
def test_values_that_nodes_allow_match_the_schema(schema: Any, seed: int) -> None:
    parsed = parse_exactly(schema)
    if parsed is None:
        return
    builder = ValueBuilder(parsed, Random(seed))
    for _ in range(5):
        try:
            value = builder.build(parsed.root)
        except NoValue:
            continue
        assert Draft202012Validator(schema).is_valid(value), value
        assert builder.allows(parsed.root, value)


def generate_text(schema: str, random: Random) -> bytes | None:
    """Write a random value that a schema allows, byte by byte; None if it gets too long."""
    style = {"x-guidance": {"whitespace_flexible": False}}
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(json.loads(schema) | style))
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    output = b""
    for _ in range(150):
        if matcher.is_accepting() and (matcher.is_stopped() or random.random() < 0.5):
            return output
        bias = matcher.compute_logit_bias()
        allowed = [byte for byte in range(256) if bias[byte]]
        plain = [byte for byte in allowed if byte in b'"{}[]:,ab019nultrefs']
        byte = random.choice(plain or allowed)
        matcher.consume_token(byte)
        output += bytes([byte])
    return None


@HYPOTHESIS_SETTINGS
@given(
    schema=generate_documents(),
    extra=st.fixed_dictionaries(
        {"type": st.just("object"), "patternProperties": st.just({"^a": {"type": "string"}})},
        optional={"maxProperties": small_integers(3), "additionalProperties": generate_schemas(1)}
        | {"required": st.just(["a"])},
    ),
    seed=st.integers(0, 2**32),
)
def test_values_that_exported_schemas_allow_match_the_schema(
    schema: Any, extra: dict[str, Any], seed: int
) -> None:
    combined = extra if isinstance(schema, bool) else schema | extra
    result = try_parse(combined, strict=True)
    if isinstance(result, BadRequest) or not isinstance(result.root, LlguidanceSchema):
        return
    if result.root.json_node is not None:
        return
    random = Random(seed)
    for _ in range(3):
        text = generate_text(result.root.schema, random)
        assert text is None or Draft202012Validator(combined).is_valid(json.loads(text)), text


@HYPOTHESIS_SETTINGS
@given(
    schema=generate_documents(typed=True),
    values=st.lists(generate_values(), min_size=5, max_size=20),
)
def test_nodes_of_typed_schemas_allow_all_matching_values(schema: Any, values: list[Any]) -> None:
    parsed = parse_exactly(schema)
    if parsed is None:
        return
    builder = ValueBuilder(parsed, Random(0))
    for value in values:
        if Draft202012Validator(schema).is_valid(value):
            assert builder.allows(parsed.root, value), value


@HYPOTHESIS_SETTINGS
@given(schema=generate_documents())
def test_strict_parsing_gives_the_same_result_or_an_error(schema: Any) -> None:
    result = try_parse(schema)
    if isinstance(result, BadRequest):
        assert parse_error(schema).code in (result.code, "unsupported_keyword")
        return
    if not result.warnings:
        assert parse(schema) == result
    elif any("is not enforced" in warning for warning in result.warnings):
        # without `strict`, what contradicts the rest of the schema is not enforced either
        assert parse_error(schema).code in ("unsupported_keyword", "invalid_schema")


@HYPOTHESIS_SETTINGS
@given(
    schema=st.recursive(
        st.one_of(generate_scalars(), st.floats(), st.text(max_size=3)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.sampled_from(sorted(keywords.ASSERTIONS)), inner, max_size=5),
        ),
        max_leaves=20,
    )
)
def test_arbitrary_json_is_parsed_or_rejected(schema: Any) -> None:
    for for_tool in (False, True):
        result = try_parse(schema, for_tool=for_tool)
        if isinstance(result, BadRequest):
            assert result.code in ("invalid_schema", "schema_too_complex")
