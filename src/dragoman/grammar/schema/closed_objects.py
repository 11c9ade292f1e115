"""Closes objects: where a schema does not mention additional properties, it forbids them.

JSON Schema allows them then. llama.cpp and Ollama do not, and their users rely on it: a small model
that may add properties adds them until it reaches a limit. Every answer to the closed schema also
conforms to the schema that the client sent.

Schemas that apply to the same object (`allOf`, `if`, a `$ref` next to `properties`) are left as
they are, because each would forbid what the others name.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from dragoman.grammar.schema.keywords import APPLICATORS, get_additional_keyword
from dragoman.output.arguments.schemas.json_pointer import escape_token
from dragoman.output.arguments.schemas.schema_references import (
    LIST_KEYWORDS,
    MAP_KEYWORDS,
    SCHEMA_KEYWORDS,
    localize_references,
)
from dragoman.types import Json

SAME_OBJECT = APPLICATORS | {"then", "else", "dependentSchemas", "dependencies"}
ALTERNATIVES = ("anyOf", "oneOf")


def close_objects(schema: Json) -> Json:
    """Return a schema whose objects have only the properties that it names."""
    try:
        schema = localize_references(schema)
        return _Closer(schema).close(schema, is_part=False)
    except RecursionError:
        return schema  # which is rejected where it is read


class _Closer:
    """Closes the objects of one schema."""

    def __init__(self, root: Json) -> None:
        self._open_targets: set[str] = set()  # pointers of schemas that are parts of others
        self._find_open_targets(root, is_part=False)

    def _find_open_targets(self, schema: Json, is_part: bool) -> None:
        if not isinstance(schema, dict):
            return
        reference = schema.get("$ref")
        if isinstance(reference, str) and (is_part or _has_parts(schema, "$ref")):
            self._open_targets.add(unquote(reference))
        for keyword, child in _list_children(schema):
            self._find_open_targets(child, _is_part(schema, keyword, is_part))

    def close(self, schema: Json, is_part: bool, pointer: str = "#") -> Json:
        if not isinstance(schema, dict):
            return schema
        is_part = is_part or pointer in self._open_targets
        closed = {
            keyword: self._close_children(schema, keyword, value, is_part, pointer)
            for keyword, value in schema.items()
        }
        if not is_part and _names_all_properties(schema):
            closed["additionalProperties"] = False
        return closed

    def _close_children(
        self, schema: dict[str, Json], keyword: str, value: Json, is_part: bool, pointer: str
    ) -> Json:
        is_part = _is_part(schema, keyword, is_part)
        pointer = f"{pointer}/{keyword}"
        if keyword in SCHEMA_KEYWORDS and isinstance(value, dict):
            return self.close(value, is_part, pointer)
        if keyword in LIST_KEYWORDS and isinstance(value, list):
            return [
                self.close(child, is_part, f"{pointer}/{index}")
                for index, child in enumerate(value)
            ]
        if keyword in MAP_KEYWORDS and isinstance(value, dict):
            return {
                name: self.close(child, is_part, f"{pointer}/{escape_token(name)}")
                for name, child in value.items()
            }
        return value


def _list_children(schema: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    """Yield the schemas inside a schema, with their keywords."""
    for keyword, value in schema.items():
        if keyword in SCHEMA_KEYWORDS and isinstance(value, dict):
            yield keyword, value
        elif keyword in LIST_KEYWORDS and isinstance(value, list):
            yield from ((keyword, child) for child in value)
        elif keyword in MAP_KEYWORDS and isinstance(value, dict):
            yield from ((keyword, child) for child in value.values())


def _is_part(schema: dict[str, Json], keyword: str, is_part: bool) -> bool:
    """Whether a schema under a keyword applies to an object together with other schemas."""
    if keyword not in SAME_OBJECT:
        return False
    value = schema[keyword]
    is_single = isinstance(value, list) and (keyword in ALTERNATIVES or len(value) == 1)
    return is_part or not is_single or _has_parts(schema, keyword)


def _has_parts(schema: dict[str, Json], keyword: str) -> bool:
    """Whether other keywords than this one say what properties an object has."""
    others = SAME_OBJECT | {"properties", "patternProperties", "required"}
    return not others.isdisjoint(schema.keys() - {keyword})


def _names_all_properties(schema: dict[str, Json]) -> bool:
    """Whether a schema lists properties, and nothing says that there may be others."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not properties or not isinstance(required, list):
        return False
    if get_additional_keyword(schema) is not None or "patternProperties" in schema:
        return False
    is_alone = SAME_OBJECT.isdisjoint(schema)
    return is_alone and all(name in properties for name in required if isinstance(name, str))
