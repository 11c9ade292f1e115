"""Rewrites the references of a JSON schema as JSON pointers: one rule for all that read schemas.

A reference may name its target by pointer, by `$anchor` or `$dynamicAnchor`, or by the `$id` of a
schema inside the same one, relative to the `$id` around the reference. `localize_references`
replaces each by the equal `$ref` with a pointer from the root, and removes the `$id`s, so readers
need to know nothing else. Nothing is fetched.

`$dynamicRef` and `$recursiveRef` mean the outermost schema on the way to them that has the same
dynamic anchor. Where that is the root, or where only one schema has it, this is the same for each
way. Where it is not, and where a target does not exist, the reference stays as the client wrote it,
and so does the `$id` around a `$ref`: the readers of the schema report them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import unquote, urljoin

from msgspec import Struct

from dragoman.output.arguments.schemas.json_pointer import (
    UnresolvedReference,
    escape_token,
    resolve_reference,
)
from dragoman.types import Json

Schema: TypeAlias = dict[str, Json]

# limits of a schema; larger ones are rejected where they are compiled
MAX_BYTES, MAX_VALUES = 1 << 18, 1 << 16
MAX_REFERENCE = 2048  # characters of a reference or `$id`
MAX_CHARACTERS = 1 << 22  # of all pointers and joined `$id`s: one long name is part of many
# a schema without any of these has only pointers
_NAMES = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
SCHEMA_KEYWORDS = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema"}
)
SCHEMA_KEYWORDS |= {"else", "if", "items", "not", "propertyNames", "then"}
SCHEMA_KEYWORDS |= {"unevaluatedItems", "unevaluatedProperties"}
LIST_KEYWORDS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
MAP_KEYWORDS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas"})
MAP_KEYWORDS |= {"patternProperties", "properties"}


def localize_references(schema: Json, max_values: int = MAX_VALUES) -> Json:
    """Return a schema whose references are pointers from its root, as far as they can be.

    One of more than `max_values` values stays as it is.
    """
    if not _has_names(schema, max_values):
        return schema
    try:
        encoded = json.dumps(schema)
        if len(encoded) > MAX_BYTES:
            return schema
        copy = json.loads(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return schema  # which its readers reject
    if not isinstance(copy, dict):
        return schema
    try:
        _Localizer(copy).rewrite()
    except _TooManyCharacters:
        return schema
    return copy


class _TooManyCharacters(Exception):
    """The pointers of a schema take too much memory."""


def _has_names(schema: Json, max_values: int) -> bool:
    """Whether a schema has names or references besides pointers; False if it is too large.

    Values are counted before anything is copied: a schema of Python objects may contain one many
    times, or itself.
    """
    stack, count, has_names = [schema], 0, False
    while stack and count <= max_values:
        value = stack.pop()
        count += 1
        if isinstance(value, dict):
            has_names = has_names or not _NAMES.isdisjoint(value)
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return has_names and not stack


class _Place(Struct, frozen=True):
    """A schema inside another, its pointer, and the `$id` that its references are relative to."""

    schema: Schema
    pointer: str
    base: str


class _Localizer:
    """Rewrites one schema in place."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._places: dict[str, _Place] = {}  # by pointer
        self._queue: list[_Place] = []
        # the pointers of the schemas with the same name; more than one makes it ambiguous
        self._resources: dict[str, set[str]] = defaultdict(set)  # by `$id`
        self._anchors: dict[tuple[str, str], set[str]] = defaultdict(set)  # by `$id` and anchor
        # those with the same dynamic anchor, None for `$recursiveAnchor`, by their `$id`
        self._dynamic: dict[str | None, dict[str, set[str]]] = defaultdict(dict)
        self._unresolved: set[str] = set()  # `$id`s around references that stay
        self._characters_left = MAX_CHARACTERS
        self._resources[""].add("")
        self._visit(root, "", "")

    def rewrite(self) -> None:
        while self._queue:  # visiting a target adds to it
            self._rewrite_references(self._queue.pop())
        for place in self._places.values():
            if place.pointer and place.base not in self._unresolved:
                place.schema.pop("$id", None)

    # index

    def _visit(self, schema: Json, pointer: str, base: str) -> None:
        stack = [(schema, pointer, base)]
        while stack:
            schema, pointer, base = stack.pop()
            if not isinstance(schema, dict) or pointer in self._places:
                continue
            base = self._add_names(schema, pointer, base)
            self._places[pointer] = place = _Place(schema, pointer, base)
            self._queue.append(place)
            for step, inner in _list_subschemas(schema):
                self._count_characters(len(pointer) + len(step))
                stack.append((inner, pointer + step, base))

    def _count_characters(self, count: int) -> None:
        self._characters_left -= count
        if self._characters_left < 0:
            raise _TooManyCharacters

    def _add_names(self, schema: Schema, pointer: str, base: str) -> str:
        """Add the names of a schema; return the `$id` that holds in it."""
        identifier = schema.get("$id")
        if isinstance(identifier, str) and len(identifier) <= MAX_REFERENCE:
            if identifier.startswith("#"):  # an anchor of older drafts
                self._anchors[base, identifier[1:]].add(pointer)
            else:
                self._count_characters(len(base) + len(identifier))
                base = _join(base, identifier).partition("#")[0]
                self._resources[base].add(pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self._anchors[base, name].add(pointer)
                if keyword == "$dynamicAnchor":
                    self._dynamic[name].setdefault(base, set()).add(pointer)
        if schema.get("$recursiveAnchor") is True and pointer in self._resources[base]:
            self._dynamic[None][base] = {pointer}
        return base

    # references

    def _rewrite_references(self, place: _Place) -> None:
        schema = place.schema
        for keyword in _REFERENCES:
            reference = schema.get(keyword)
            if not isinstance(reference, str):
                continue
            pointer = self._resolve(keyword, reference, place.base)
            if pointer is None:
                self._unresolved |= {place.base} if keyword == "$ref" else set()
                continue
            self._count_characters(len(pointer))
            self._visit_target(pointer)
            if keyword != "$ref":
                del schema[keyword]
            if keyword == "$ref" or "$ref" not in schema:
                schema["$ref"] = _make_reference(pointer)
            else:
                options = schema.get("allOf")
                schema["allOf"] = options if isinstance(options, list) else []
                schema["allOf"].append({"$ref": _make_reference(pointer)})

    def _resolve(self, keyword: str, reference: str, base: str) -> str | None:
        """Return the pointer of what a reference means, or None if that is not known."""
        pointer = self._resolve_static(reference, base)
        if pointer is None or keyword == "$ref":
            return pointer
        is_recursive = keyword == "$recursiveRef"
        name = None if is_recursive else unquote(reference.partition("#")[2])
        same = self._dynamic.get(name, {})
        place = self._places.get(pointer)
        if len(same) <= 1 or place is None or pointer not in same.get(place.base, ()):
            return pointer
        return _get_only(same.get(self._places[""].base))

    def _resolve_static(self, reference: str, base: str) -> str | None:
        """Return the pointer of the schema that a reference names, whatever is around it."""
        if len(reference) > MAX_REFERENCE:
            return None
        self._count_characters(len(base))
        uri, _, fragment = _join(base, reference).partition("#")
        resource = _get_only(self._resources.get(uri))
        if resource is None:
            return None
        self._count_characters(len(resource))
        if fragment and not fragment.startswith("/"):
            return _get_only(self._anchors.get((uri, unquote(fragment))))
        try:
            return resolve_reference(self._root, _make_reference(resource) + fragment)[0]
        except UnresolvedReference:
            return None

    def _visit_target(self, pointer: str) -> None:
        """Visit a target that no keyword of JSON Schema leads to."""
        around = pointer
        while around not in self._places:
            around = around.rpartition("/")[0]
        if around != pointer:
            target = resolve_reference(self._root, _make_reference(pointer))[1]
            self._visit(target, pointer, self._places[around].base)


def _get_only(pointers: set[str] | None) -> str | None:
    return next(iter(pointers)) if pointers is not None and len(pointers) == 1 else None


def _make_reference(pointer: str) -> str:
    return "#" + pointer.replace("%", "%25")


def _join(base: str, reference: str) -> str:
    """Return a reference relative to an `$id`, which may be of any scheme."""
    if not reference or reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _list_subschemas(schema: Schema) -> Iterator[tuple[str, Json]]:
    """Yield the schemas directly below one, each with its pointer from there."""
    for keyword, value in schema.items():
        if keyword in SCHEMA_KEYWORDS and isinstance(value, dict):
            yield f"/{keyword}", value
        elif keyword in LIST_KEYWORDS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield f"/{keyword}/{index}", inner
        elif keyword in MAP_KEYWORDS and isinstance(value, dict):
            for name, inner in value.items():
                yield f"/{keyword}/{escape_token(name)}", inner
