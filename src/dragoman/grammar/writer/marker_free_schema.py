"""Schemas for the engine's own reader that allow no text in which a mark is.

Its reader knows no complement, but a text without marks can be told outright. That is added to
every text that a schema leaves open, and to every name that an object leaves open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dragoman.grammar.regex.exclude_markers import marker_free_regexes
from dragoman.grammar.schema.llguidance_check import check_schema
from dragoman.grammar.writer.marker_free_json import find_marker, may_contain_marker
from dragoman.types import Json

_IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_TABLES = ("properties", "patternProperties", "$defs")
ANY = "#/$defs/any"


class _Marked(Exception):
    """What cannot be written without a mark."""


def exclude_markers_from_schema(schema: dict[str, Json], marks: Sequence[str]) -> dict[str, Json] | None:
    """The schema without what holds a mark; None where that cannot be said."""
    guard = _Guard(marks)
    try:
        found = guard.of(schema)
        if guard.any:
            found.setdefault("$defs", {})["any"] = guard.anything()
    except _Marked:
        return None
    return found if check_schema(found) == "satisfiable" else None


class _Guard:
    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self._bans = [{"pattern": f"^(?:{one})$"} for one in marker_free_regexes(marks)]
        self._key = self._bans[0]["pattern"] if len(self._bans) == 1 else None
        self.any = False  # whether something allows all values

    def anything(self) -> dict[str, Json]:
        plain = [{"type": "string", "allOf": self._bans}, {"type": ["number", "boolean", "null"]}]
        others = self._others({"type": "object", "additionalProperties": {"$ref": ANY}})
        return {"anyOf": [*plain, {"type": "array", "items": {"$ref": ANY}}, others]}

    def of(self, schema: Json, around: Sequence[str] | None = None) -> Any:
        """A part of a schema; `around` are the kinds that the schema around it allows here."""
        if schema is False:
            return False
        if schema is True or not schema.keys() - {"$defs"}:
            if around is not None and not {"array", "object"} & set(around):
                return schema
            self.any = True
            return {"$ref": ANY}
        if "enum" in schema or "const" in schema:
            return self._listed(schema)
        said = schema.get("type", around)
        kinds = [said] if isinstance(said, str) else said
        found = dict(schema)
        for word in _LISTS:
            if word in found:
                inside = None if word == "prefixItems" else kinds
                found[word] = [self.of(one, inside) for one in found[word]]
        for word in _TABLES:
            if word in found:
                found[word] = {name: self.of(one) for name, one in found[word].items()}
        parts = _IN_PLACE & found.keys()  # they say what is not said here
        free = not parts if kinds is None else "string" in kinds
        if free and ("type" in found or around is None):
            found["allOf"] = [*found.get("allOf", ()), *self._bans]
        return self._kinds(found, () if parts else kinds)

    def _listed(self, schema: dict[str, Json]) -> dict[str, Json]:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        texts = [json.dumps(one, ensure_ascii=False) for one in values]
        kept = [
            one
            for one, text in zip(values, texts, strict=True)
            if not find_marker(text, self._marks)
        ]
        if not kept:
            raise _Marked
        return schema | ({"enum": kept} if "enum" in schema else {})

    def _kinds(self, found: dict[str, Json], kinds: Sequence[str] | None) -> dict[str, Json]:
        """What a schema says of what is in lists and objects; None stands for all kinds."""
        if kinds is None or "array" in kinds or "items" in found:
            found["items"] = self.of(found.get("items", True))
        if kinds is None or "object" in kinds or "additionalProperties" in found:
            found = self._object(found)
        return found

    def _object(self, found: dict[str, Json]) -> dict[str, Json]:
        for name in (*found.get("properties", ()), *found.get("required", ())):
            if find_marker(name, self._marks) is not None:
                raise _Marked
        for name in found.get("patternProperties", ()):
            if may_contain_marker({"type": "string", "pattern": name}, self._marks):
                raise _Marked
        others = found.get("additionalProperties", True)
        if others is False:
            return found
        return self._others(found | {"additionalProperties": self.of(others)})

    def _others(self, found: dict[str, Json]) -> dict[str, Json]:
        """Other names are told by a pattern: there is no other way to hold them to something."""
        if self._key is None or {"properties", "patternProperties"} & found.keys():
            raise _Marked
        names = {self._key: found["additionalProperties"]}
        return found | {"patternProperties": names, "additionalProperties": False}
