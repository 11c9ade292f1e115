"""The words of JSON schema: what each of them must look like, and which kind of value it is about.

Words that are in no table here are annotations, and nothing depends on them. The older ways of
writing are read too: `items` as a list, and `exclusiveMinimum` as a flag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.output.arguments.parameter_types import KEYWORDS_BY_TYPE
from dragoman.types import Json

FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname"})
FORMATS |= {"ipv4", "ipv6", "uuid", "uri"}

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
# words that no grammar here enforces, and the kind they are about
UNENFORCED_KEYWORDS: dict[str, str | None] = {
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
APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "not"})
ASSERTIONS = frozenset({"type", "enum", "const"}) | APPLICATORS | UNENFORCED_KEYWORDS.keys()
ASSERTIONS |= frozenset().union(*KEYWORDS_BY_TYPE.values())
PROPERTY_NAME_KEYWORDS = frozenset(
    {"minProperties", "maxProperties", "propertyNames"}
)  # about all members
MAX_BOUND = 10**17  # where bounds stop


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _is_object(value: Json) -> bool:
    return isinstance(value, dict)


def _is_list_of_names(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_nonempty_list(value: Json) -> bool:
    return isinstance(value, list) and bool(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Json) -> bool:
    return _is_number(value) and value >= 0 and value == math.floor(value)


def _is_instance(*kinds: type) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, kinds)


_VALUE_CHECKS: dict[str, tuple[Callable[[Json], bool], str]] = {}
for _words, _right, _must in (
    ("properties patternProperties $defs definitions", _is_object, "an object"),
    ("dependencies dependentRequired dependentSchemas", _is_object, "an object"),
    ("required", _is_list_of_names, "a list of names"),
    ("enum allOf anyOf oneOf prefixItems", _is_nonempty_list, "a list that is not empty"),
    ("items", _is_instance(dict, bool, list), "a schema"),
    ("additionalItems additionalProperties propertyNames contains", _is_schema, "a schema"),
    ("not if then else unevaluatedItems unevaluatedProperties", _is_schema, "a schema"),
    ("minLength maxLength minItems maxItems", _is_count, "a whole number that is not negative"),
    ("minProperties maxProperties", _is_count, "a whole number that is not negative"),
    ("minContains maxContains", _is_count, "a whole number that is not negative"),
    ("minimum maximum", _is_number, "a number"),
    ("exclusiveMinimum exclusiveMaximum", _is_instance(int, float), "a number"),
    ("multipleOf", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("pattern format $ref", _is_instance(str), "a string"),
    ("uniqueItems", _is_instance(bool), "`true` or `false`"),
):
    _VALUE_CHECKS |= dict.fromkeys(_words.split(), (_right, _must))


def find_invalid_keyword(
    schema: Mapping[str, Json], synonyms: Mapping[str, str]
) -> tuple[str, str] | None:
    """The first word that is not what it must be, and what that is."""
    for word, value in schema.items():
        if word == "type" and declared_types(schema, synonyms) == ():
            return word, f"must be one of {', '.join(TYPES)}, or a list of them"
        right, must = _VALUE_CHECKS.get(word, (None, ""))
        if right is not None and not right(value):
            return word, f"must be {must}"
    return None


def declared_types(
    schema: Mapping[str, Json], synonyms: Mapping[str, str]
) -> tuple[str, ...] | None:
    """The kinds that a schema names; None where it names none, nothing where it makes no sense."""
    if "type" not in schema:
        return None
    said = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not all(isinstance(one, str) for one in said):
        return ()
    found = dict.fromkeys(synonyms.get(one, one) for one in said)
    if not found.keys() <= set(TYPES):
        return ()
    return tuple(one for one in found if one != "integer" or "number" not in found)


def implied_types(schema: Mapping[str, Json]) -> list[str]:
    """The kinds that the words of a schema are about."""
    found = [kind for kind, words in KEYWORDS_BY_TYPE.items() if words & schema.keys()]
    if "object" not in found and additional_keyword(schema) is not None:
        found.append("object")
    if "string" not in found and schema.get("format") in FORMATS:
        found.append("string")
    return found


def required_only_options(options: list[Json]) -> list[frozenset[str]] | None:
    """The members that each option asks for, where options ask for members and nothing else."""
    found = []
    for one in options:
        if not isinstance(one, dict) or one.get("type", "object") != "object":
            return None
        if ASSERTIONS & one.keys() - {"type"} != {"required"} or not _is_list_of_names(
            one["required"]
        ):
            return None
        found.append(frozenset(one["required"]))
    return found


def is_false_schema(schema: Mapping[str, Json]) -> bool:
    """Whether a schema is one of the ways to say `false`."""
    return "not" in schema and (schema["not"] is True or schema["not"] == {})


def _has_no_effect(word: str, schema: Mapping[str, Json]) -> bool:
    """Whether a word that cannot be enforced has no say here."""
    value = schema[word]
    void: bool = value == {}
    empty = value is True or void
    match word:
        case "not":
            return value is False or empty
        case "if":
            return not {"then", "else"} & schema.keys()
        case "format":
            return value in FORMATS
        case "uniqueItems":
            return value is False
        case "contains":
            return schema.get("minContains") == 0 and "maxContains" not in schema
        case "unevaluatedItems":
            return empty or isinstance(schema.get("items"), dict | bool)
        case "unevaluatedProperties":
            return empty or additional_keyword(schema) is not None
        case "dependencies" | "dependentRequired" | "dependentSchemas":
            return void
        case "$id":
            return not isinstance(value, str) or value.startswith("#")
    return False


def is_unenforced(word: str, schema: Mapping[str, Json], synonyms: Mapping[str, str]) -> bool:
    """Whether a word that cannot be enforced leaves something out of what a schema allows."""
    kind, kinds = UNENFORCED_KEYWORDS[word], declared_types(schema, synonyms)
    about = kind is None or kinds is None or kind in kinds
    return word in schema and about and not _has_no_effect(word, schema)


def additional_keyword(schema: Mapping[str, Json]) -> str | None:
    """The word that says what other members may be: without parts to merge, both say the same."""
    if "additionalProperties" in schema:
        return "additionalProperties"
    alone = "unevaluatedProperties" in schema and not APPLICATORS & schema.keys()
    return "unevaluatedProperties" if alone else None


def item_keywords(schema: Mapping[str, Json]) -> tuple[str, str | None]:
    """The words of the first items, and of those that follow."""
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        return "items", "additionalItems" if "additionalItems" in schema else None
    return "prefixItems", "items" if "items" in schema else None


def numeric_bounds(schema: Mapping[str, Json]) -> dict[str, tuple[str, Any]]:
    """The bounds of a number by what they are, each with the word that a client wrote it by."""
    found: dict[str, tuple[str, Any]] = {}
    for word, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        flag = schema.get(exclusive)
        if word in schema:
            found[exclusive if flag is True else word] = (word, schema[word])
        if flag is not None and not isinstance(flag, bool):
            found[exclusive] = (exclusive, flag)
    if "multipleOf" in schema:
        found["multipleOf"] = ("multipleOf", schema["multipleOf"])
    return found


def round_bound_inwards(what: str, value: Any) -> Any:
    """A bound that the grammar engine can keep, and that leaves no more than the client's.

    It counts in floating point, and only so far.
    """
    if what == "multipleOf":
        return value
    lower = what in ("minimum", "exclusiveMinimum")
    near = float(value)
    if near != value:
        if lower and near < value:
            near = math.nextafter(near, math.inf)
        elif not lower and near > value:
            near = math.nextafter(near, -math.inf)
        value = int(near)
    return max(value, -MAX_BOUND) if lower else min(value, MAX_BOUND)


def escape_for_llguidance(pattern: str) -> str | None:
    """A pattern for the grammar engine: the same, but for what means another thing there.

    In a class, it takes `[`, `&&`, `--` and `~~` for operators, and a `]` at its beginning for a
    letter. None where that cannot be written otherwise.
    """
    found, at, inside = [], 0, False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            found.append(pattern[at : at + 2])
            at += 2
            continue
        if not inside and letter == "[":
            inside = True
            head = "[^" if pattern.startswith("[^", at) else "["
            found.append(head)
            at += len(head)
            if pattern.startswith("]", at):
                return None
            continue
        if inside and pattern.startswith("--", at):
            return None
        found.append("\\" + letter if inside and letter in "[&~" else letter)
        inside = inside and letter != "]"
        at += 1
    return "".join(found)
