"""Restricts a schema that llguidance compiles to values without markers.

llguidance's schema compiler has no complement, but a regular expression can describe the strings
without markers. It is added to every string that the schema leaves open, and to every property name
that an object leaves open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dragoman.grammar.regex.exclude_markers import write_marker_free_regexes
from dragoman.grammar.schema.llguidance_check import check_schema
from dragoman.grammar.writer.json.marker_free import find_marker, may_contain_marker
from dragoman.types import Json

_APPLICATORS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})  # describe the same value
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs")
ANY_REF = "#/$defs/any"


class _ContainsMarker(Exception):
    """A part of the schema cannot be restricted."""


def exclude_markers_from_schema(
    schema: dict[str, Json], markers: Sequence[str]
) -> dict[str, Json] | None:
    """Restrict a schema to values without markers; None if that is impossible."""
    restriction = _MarkerRestriction(markers)
    try:
        restricted = restriction.apply(schema)
        if restriction.uses_any:
            restricted.setdefault("$defs", {})["any"] = restriction.build_any()
    except _ContainsMarker:
        return None
    return restricted if check_schema(restricted) == "satisfiable" else None


class _MarkerRestriction:
    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = markers
        self._patterns = [
            {"pattern": f"^(?:{regex})$"} for regex in write_marker_free_regexes(markers)
        ]
        self._key_pattern = self._patterns[0]["pattern"] if len(self._patterns) == 1 else None
        self.uses_any = False  # whether a part of the schema allows any value

    def build_any(self) -> dict[str, Json]:
        """Return the schema of any value without markers."""
        scalars: list[Json] = [
            {"type": "string", "allOf": self._patterns},
            {"type": ["number", "boolean", "null"]},
        ]
        open_object = {"type": "object", "additionalProperties": {"$ref": ANY_REF}}
        objects = self._restrict_names(open_object)
        return {"anyOf": [*scalars, {"type": "array", "items": {"$ref": ANY_REF}}, objects]}

    def apply(self, schema: Json, outer_types: Sequence[str] | None = None) -> Json:
        """Restrict a part of a schema; the schema around it allows `outer_types` here."""
        if schema is False:
            return False
        if schema is True or not schema.keys() - {"$defs"}:
            if outer_types is not None and not {"array", "object"} & set(outer_types):
                return schema
            self.uses_any = True
            return {"$ref": ANY_REF}
        if "enum" in schema or "const" in schema:
            return self._restrict_literals(schema)
        declared = schema.get("type", outer_types)
        types = [declared] if isinstance(declared, str) else declared
        restricted = dict(schema)
        for keyword in _SCHEMA_LISTS:
            if keyword in restricted:
                outer = None if keyword == "prefixItems" else types
                restricted[keyword] = [self.apply(part, outer) for part in restricted[keyword]]
        for keyword in _SCHEMA_MAPS:
            if keyword in restricted:
                parts = restricted[keyword].items()
                restricted[keyword] = {name: self.apply(part) for name, part in parts}
        has_applicators = bool(_APPLICATORS & restricted.keys())  # they are restricted themselves
        allows_string = not has_applicators if types is None else "string" in types
        if allows_string and ("type" in restricted or outer_types is None):
            restricted["allOf"] = [*restricted.get("allOf", ()), *self._patterns]
        return self._restrict_containers(restricted, () if has_applicators else types)

    def _restrict_literals(self, schema: dict[str, Json]) -> dict[str, Json]:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        possible = [
            value
            for value in values
            if not find_marker(json.dumps(value, ensure_ascii=False), self._markers)
        ]
        if not possible:
            raise _ContainsMarker
        return schema | ({"enum": possible} if "enum" in schema else {})

    def _restrict_containers(
        self, schema: dict[str, Json], types: Sequence[str] | None
    ) -> dict[str, Json]:
        """Restrict what arrays and objects contain; `types` of None stands for all types."""
        if types is None or "array" in types or "items" in schema:
            schema["items"] = self.apply(schema.get("items", True))
        if types is None or "object" in types or "additionalProperties" in schema:
            schema = self._restrict_object(schema)
        return schema

    def _restrict_object(self, schema: dict[str, Json]) -> dict[str, Json]:
        for name in (*schema.get("properties", ()), *schema.get("required", ())):
            if find_marker(name, self._markers) is not None:
                raise _ContainsMarker
        for pattern in schema.get("patternProperties", ()):
            if may_contain_marker({"type": "string", "pattern": pattern}, self._markers):
                raise _ContainsMarker
        additional = schema.get("additionalProperties", True)
        if additional is False:
            return schema
        return self._restrict_names(schema | {"additionalProperties": self.apply(additional)})

    def _restrict_names(self, schema: dict[str, Json]) -> dict[str, Json]:
        """Restrict additional names with a pattern, which is the only way to restrict them."""
        if self._key_pattern is None or {"properties", "patternProperties"} & schema.keys():
            raise _ContainsMarker
        names = {self._key_pattern: schema["additionalProperties"]}
        return schema | {"patternProperties": names, "additionalProperties": False}
