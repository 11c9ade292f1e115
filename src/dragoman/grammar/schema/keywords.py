"""The keywords of JSON Schema: what their values must be, and which type they are about.

Keywords that are in no table here are annotations and have no effect. Older forms are accepted too:
`items` as a list, and `exclusiveMinimum` as a boolean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from dragoman.output.arguments.schemas.parameter_types import KEYWORDS_BY_TYPE
from dragoman.types import Json

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname"})
FORMATS |= {"ipv4", "ipv6", "uuid", "uri"}

REFERENCES = ("ref", "dynamicRef", "recursiveRef")
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
# keywords that llguidance's schema compiler does not enforce, and the type they are about
UNSUPPORTED_KEYWORDS: dict[str, str | None] = {
    "not": None,
    "if": None,
    "$dynamicRef": None,
    "$recursiveRef": None,
    "$id": None,
    "format": "string",
    "uniqueItems": "array",
    "contains": "array",
    "unevaluatedItems": "array",
    "dependencies": "object",
    "dependentRequired": "object",
    "dependentSchemas": "object",
    "unevaluatedProperties": "object",
}
# those of them that nodes can express, in many cases
EXPRESSIBLE_KEYWORDS = frozenset({"not", "if", "uniqueItems", "contains"})
EXPRESSIBLE_KEYWORDS |= {"dependencies", "dependentRequired", "dependentSchemas"}
CONDITIONAL_KEYWORDS = frozenset({"not", "if", "then", "else"})
APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "not"})
ITEM_APPLICATORS = APPLICATORS | {"contains"}
ASSERTIONS = frozenset({"type", "enum", "const"}) | APPLICATORS | UNSUPPORTED_KEYWORDS.keys()
ASSERTIONS |= frozenset().union(*KEYWORDS_BY_TYPE.values())
MAX_BOUND = 10**17  # the greatest bound that llguidance enforces exactly


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _is_list_of_strings(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_nonempty_list(value: Json) -> bool:
    return isinstance(value, list) and bool(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Json) -> bool:
    return _is_number(value) and value >= 0 and value == math.floor(value)


def _is_instance(*types: type) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, types)


_VALUE_CHECKS: dict[str, tuple[Callable[[Json], bool], str]] = {}
for _keywords, _is_valid, _expected in (
    ("properties patternProperties $defs definitions", _is_object, "an object"),
    ("dependencies dependentRequired dependentSchemas", _is_object, "an object"),
    ("required", _is_list_of_strings, "a list of strings"),
    ("enum allOf anyOf oneOf prefixItems", _is_nonempty_list, "a non-empty list"),
    ("items", _is_instance(dict, bool, list), "a schema"),
    ("additionalItems additionalProperties propertyNames contains", _is_schema, "a schema"),
    ("not if then else unevaluatedItems unevaluatedProperties", _is_schema, "a schema"),
    ("minLength maxLength minItems maxItems", _is_count, "a non-negative integer"),
    ("minProperties maxProperties minContains maxContains", _is_count, "a non-negative integer"),
    ("minimum maximum", _is_number, "a number"),
    ("exclusiveMinimum exclusiveMaximum", _is_instance(int, float), "a number"),
    ("multipleOf", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("pattern format $ref", _is_instance(str), "a string"),
    ("uniqueItems", _is_instance(bool), "`true` or `false`"),
):
    _VALUE_CHECKS |= dict.fromkeys(_keywords.split(), (_is_valid, _expected))


def find_invalid_keyword(
    schema: Mapping[str, Json], synonyms: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return the first keyword with an invalid value, and what the value must be."""
    for keyword, value in schema.items():
        if keyword == "type" and read_declared_types(schema, synonyms) == ():
            return keyword, f"must be one of {', '.join(TYPES)}, or a list of them"
        is_valid, expected = _VALUE_CHECKS.get(keyword, (None, ""))
        if is_valid is not None and not is_valid(value):
            return keyword, f"must be {expected}"
    return None


def read_declared_types(
    schema: Mapping[str, Json], synonyms: Mapping[str, str]
) -> tuple[str, ...] | None:
    """Return the value of `type` as a tuple: None if it is absent, empty if it is invalid."""
    if "type" not in schema:
        return None
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not all(isinstance(name, str) for name in names):
        return ()
    types = dict.fromkeys(synonyms.get(name, name) for name in names)
    if not types.keys() <= set(TYPES):
        return ()
    return tuple(name for name in types if name != "integer" or "number" not in types)


def find_implied_types(schema: Mapping[str, Json]) -> list[str]:
    """Return the types that the keywords of a schema are about."""
    types = [name for name, keywords in KEYWORDS_BY_TYPE.items() if keywords & schema.keys()]
    if "object" not in types and get_additional_keyword(schema) is not None:
        types.append("object")
    if "string" not in types and schema.get("format") in FORMATS:
        types.append("string")
    return types


def is_false_schema(schema: Mapping[str, Json]) -> bool:
    """Whether a schema is `{"not": true}` or `{"not": {}}`, which means `false`."""
    return "not" in schema and (schema["not"] is True or schema["not"] == {})


def is_conditional(schema: Json) -> bool:
    """Whether all that a schema asserts is `not` or `if`."""
    if not isinstance(schema, dict):
        return False
    asserted = (ASSERTIONS | CONDITIONAL_KEYWORDS) & schema.keys()
    return bool(asserted) and asserted <= CONDITIONAL_KEYWORDS


def restricts(keyword: str, schema: Mapping[str, Json], synonyms: Mapping[str, str]) -> bool:
    """Whether a keyword of `UNSUPPORTED_KEYWORDS` restricts what this schema allows."""
    keyword_type, types = UNSUPPORTED_KEYWORDS[keyword], read_declared_types(schema, synonyms)
    is_relevant = keyword_type is None or types is None or keyword_type in types
    return keyword in schema and is_relevant and not _has_no_effect(keyword, schema)


def _has_no_effect(keyword: str, schema: Mapping[str, Json]) -> bool:
    value = schema[keyword]
    is_empty: bool = value == {}
    allows_all = value is True or is_empty
    match keyword:
        case "not":
            return value is False or allows_all
        case "if":
            return not {"then", "else"} & schema.keys()
        case "format":
            return value in FORMATS
        case "uniqueItems":
            return value is False
        case "contains":
            return schema.get("minContains") == 0 and "maxContains" not in schema
        case "unevaluatedItems":
            return allows_all or get_item_keywords(schema)[1] in ("items", keyword)
        case "unevaluatedProperties":
            return allows_all or get_additional_keyword(schema) is not None
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return is_empty
        case "$id":
            # it changes what the references below it refer to
            has_reference = any('"$' + name in json.dumps(schema) for name in REFERENCES)
            return not isinstance(value, str) or value.startswith("#") or not has_reference
    return False


def get_additional_keyword(schema: Mapping[str, Json]) -> str | None:
    """Return the keyword that constrains additional properties.

    Without applicators, `unevaluatedProperties` means the same as `additionalProperties`.
    """
    if "additionalProperties" in schema:
        return "additionalProperties"
    is_equivalent = "unevaluatedProperties" in schema and not APPLICATORS & schema.keys()
    return "unevaluatedProperties" if is_equivalent else None


def get_item_keywords(schema: Mapping[str, Json]) -> tuple[str, str | None]:
    """Return the keywords for the first items of an array and for those that follow.

    Without applicators, `unevaluatedItems` means the same as `items`.
    """
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        return "items", "additionalItems" if "additionalItems" in schema else None
    if "items" in schema:
        return "prefixItems", "items"
    is_equivalent = "unevaluatedItems" in schema and not ITEM_APPLICATORS & schema.keys()
    return "prefixItems", "unevaluatedItems" if is_equivalent else None


def read_numeric_bounds(schema: Mapping[str, Json]) -> dict[str, tuple[str, float]]:
    """Return the bounds by current keyword, each with the keyword that the client wrote."""
    bounds: dict[str, tuple[str, float]] = {}
    for keyword, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if keyword in schema:
            bounds[exclusive if flag is True else keyword] = (keyword, schema[keyword])
        if flag is not None and not isinstance(flag, bool):
            bounds[exclusive] = (exclusive, flag)
    if "multipleOf" in schema:
        bounds["multipleOf"] = ("multipleOf", schema["multipleOf"])
    return bounds


def round_bound_inwards(keyword: str, value: float) -> float:
    """Return a bound that llguidance can enforce, and that allows no more than the client's.

    llguidance computes bounds in floating point, and only up to `MAX_BOUND`.
    """
    if keyword == "multipleOf":
        return value
    is_lower = keyword in ("minimum", "exclusiveMinimum")
    rounded = float(value)
    if rounded != value:
        if is_lower and rounded < value:
            rounded = math.nextafter(rounded, math.inf)
        elif not is_lower and rounded > value:
            rounded = math.nextafter(rounded, -math.inf)
        value = int(rounded)
    return max(value, -MAX_BOUND) if is_lower else min(value, MAX_BOUND)
