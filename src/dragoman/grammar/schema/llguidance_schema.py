"""What the grammar engine's own reader of schemas can do.

A `Judge` asks it whether it can put something together, and whether anything is left that fits.
A `Whole` is a part of a client's schema rewritten for it: only words that assert something, no
word that was found not to be enforced, and with all that it refers to. Its reader goes deep for
every reference and multiplies out what it merges, so both are weighed before it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from dragoman.grammar.regex.escape import escape_class_operators
from dragoman.grammar.schema import keywords, limits
from dragoman.output.arguments.json_pointer import escape_token
from dragoman.types import Json

STEPS_PER_COPY = 8  # steps that a copy of a schema counts for
_SCHEMA_MAPS = frozenset({"properties", "patternProperties"})
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_COPIED_KEYWORDS = frozenset({"enum", "const", "required", "minLength", "maxLength", "format"})
_COPIED_KEYWORDS |= {"minItems", "maxItems", "minProperties", "maxProperties", "propertyNames"}
_COPIED_KEYWORDS |= keywords.UNENFORCED_KEYWORDS.keys() - {"$id"}


class NotExportable(Exception):
    """More than the engine's reader should be asked to read, or nothing that it could."""


class SchemaExporter:
    """Writes a part of a schema with all that it refers to.

    `find` gives the pointer and the schema that a reference in some place leads to, and has read
    it; `loose` are the pointers of what is left out.
    """

    def __init__(
        self,
        find: Callable[[str, str], tuple[str, Json]],
        loose: Container[str],
        synonyms: Mapping[str, str],
        budget: limits.SchemaBudget,
    ) -> None:
        self._resolve, self._unenforced, self._synonyms = find, loose, synonyms
        self._budget = budget
        self._targets: dict[str, Json] = {}  # by pointer
        self._total_depth = 0
        self._max_depth = 0

    def export(self, schema: Mapping[str, Json], where: str) -> dict[str, Json] | None:
        """The schema; None where it is too much for the engine's reader."""
        try:
            found = self._copy_root(schema, where)
            defined: dict[str, Json] = {}
            while len(defined) < len(self._targets):
                pointer = list(self._targets)[len(defined)]
                target = self._targets[pointer]
                defined[self._definition_name(pointer)] = self._copy_root(target, pointer)
            _check_weight(found, defined)
        except NotExportable:
            return None
        if not isinstance(found, dict):
            return {"anyOf": [found]}
        return found | {"$defs": defined} if defined else found

    def _copy_root(self, schema: Json, where: str) -> Json:
        self._max_depth = 0
        found = self._copy(schema, where)
        self._total_depth += self._max_depth
        if self._total_depth > limits.MAX_EXPORT_DEPTH:
            raise NotExportable
        return found

    def _definition_name(self, pointer: str) -> str:
        return f"d{list(self._targets).index(pointer)}"

    def _copy(self, schema: Json, where: str, depth: int = 1) -> Json:
        self._budget.count_steps(STEPS_PER_COPY)
        self._max_depth = max(self._max_depth, depth)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or keywords.find_invalid_keyword(schema, self._synonyms):
            raise NotExportable
        if keywords.is_false_schema(schema):
            return False
        schema = limits.clamp_upper_bounds(schema)
        found: dict[str, Json] = {}
        for word, value in schema.items():
            found |= self._copy_keyword(schema, word, value, where, depth)
        ends = keywords.numeric_bounds(schema).items()
        found |= {word: keywords.round_bound_inwards(word, value) for word, (_, value) in ends}
        for place in [word for word in found if f"{where}/{word}" in self._unenforced]:
            del found[place]
        return found

    def _copy_keyword(
        self, schema: dict[str, Json], word: str, value: Json, where: str, depth: int
    ) -> dict[str, Json]:
        here = f"{where}/{word}"
        loose = here in self._unenforced
        first, rest = keywords.item_keywords(schema)
        if word == "oneOf" and loose:
            return {"anyOf": self._copy_list(value, here, depth)}
        if word == "additionalProperties" or keywords.additional_keyword(schema) == word:
            return {"additionalProperties": self._copy(value, here, depth + 1)}
        unenforced = word in keywords.UNENFORCED_KEYWORDS
        if loose or (unenforced and not keywords.is_unenforced(word, schema, self._synonyms)):
            return {word: value} if word == "format" and value in keywords.FORMATS else {}
        if word == "propertyNames" and value in (True, {}, {"type": "string"}):
            return {}
        if word == "type":
            return {"type": list(keywords.declared_types(schema, self._synonyms) or ())}
        if word == "$ref":
            return {"$ref": f"#/$defs/{self._copy_reference(value, here)}"}
        if word == "pattern":
            return {"pattern": escape_class_operators(value) or value}
        if word == first:
            return {"prefixItems": self._copy_list(value, here, depth)} if value else {}
        if word == rest:
            return {"items": self._copy(value, here, depth + 1)}
        if word in _SCHEMA_LISTS:
            return {word: self._copy_list(value, here, depth)}
        if word in _SCHEMA_MAPS:
            table = {
                name: self._copy(inner, f"{here}/{escape_token(name)}", depth + 1)
                for name, inner in value.items()
            }
            return {word: table}
        return {word: value} if word in _COPIED_KEYWORDS else {}

    def _copy_list(self, every: list[Json], where: str, depth: int) -> list[Json]:
        return [
            self._copy(one, f"{where}/{index}", depth + 1)
            for index, one in enumerate(every)
            if f"{where}/{index}" not in self._unenforced
        ]

    def _copy_reference(self, reference: str, where: str) -> str:
        pointer, target = self._resolve(reference, where)
        self._targets.setdefault(pointer, target)
        return self._definition_name(pointer)


def allows_escaped_names(schema: dict[str, Json]) -> bool:
    """Whether an object may have a member it knows under another name.

    The engine's reader takes a name with escapes for one that it does not know.
    """
    return _EscapedNameSearch(schema.get("$defs", {})).search(schema)


class _EscapedNameSearch:
    """Looks for objects that know some names and allow others. `defined` is what is referred to."""

    def __init__(self, defined: Mapping[str, Json]) -> None:
        self._definitions = defined

    def search(self, schema: Json) -> bool:
        waiting: list[Json] = [schema, *self._definitions.values()]
        while waiting:
            one = waiting.pop()
            if isinstance(one, dict):
                if self._has_specific_properties(one, set()) and not self._is_closed(one, set()):
                    return True
                waiting += _subschemas(one)
        return False

    def _in_place_schemas(
        self, schema: Mapping[str, Json], seen: set[str]
    ) -> dict[str, list[Json]]:
        """The schemas that are about the same value, by the word that says so."""
        found = {word: schema[word] for word in _SCHEMA_LISTS if word in schema}
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        if name and name not in seen:
            seen.add(name)
            found["$ref"] = [self._definitions.get(name, True)]
        return found

    def _has_specific_properties(self, schema: Json, seen: set[str]) -> bool:
        """Whether some names of members mean more than others."""
        if not isinstance(schema, dict):
            return False
        others = schema.get("additionalProperties", True)
        told = [one for word in _SCHEMA_MAPS for one in schema.get(word, {}).values()]
        plain = (others, {}) if others is True else (others,)
        return any(one not in plain for one in told) or any(
            self._has_specific_properties(one, seen)
            for some in self._in_place_schemas(schema, seen).values()
            for one in some
        )

    def _is_closed(self, schema: Json, seen: set[str]) -> bool:
        """Whether it allows no objects with names that it does not know."""
        if not isinstance(schema, dict):
            return schema is False
        if "enum" in schema or "const" in schema or "object" not in schema.get("type", "object"):
            return True
        if schema.get("additionalProperties") is False:
            return True
        return any(
            (all if word in ("anyOf", "oneOf") else any)(self._is_closed(one, seen) for one in some)
            for word, some in self._in_place_schemas(schema, seen).items()
        )


def _subschemas(schema: dict[str, Json]) -> list[Json]:
    """The schemas right below one."""
    found = [one for word in _SCHEMA_MAPS for one in schema.get(word, {}).values()]
    found += [one for word in (*_SCHEMA_LISTS, "prefixItems") for one in schema.get(word, ())]
    return [*found, schema.get("items"), schema.get("additionalProperties")]


def _check_weight(schema: Json, defined: Mapping[str, Json]) -> None:
    """Refuses what is too much once every reference is replaced by what it leads to."""
    known: dict[str, int] = {}

    def weight(value: Any) -> int:
        if isinstance(value, list):
            return 1 + sum(map(weight, value))
        if not isinstance(value, dict):
            return 0
        total = 1
        for word, inner in value.items():
            if word == "$ref" and isinstance(inner, str):
                name = inner.removeprefix("#/$defs/")
                if name not in known:
                    known[name] = 0  # for whatever refers back to it
                    known[name] = weight(defined.get(name))
                total += known[name]
            elif word not in ("enum", "const", "required"):
                total += weight(inner)
        return total

    if (
        weight(schema) > limits.MAX_EXPORT_WEIGHT
        or _count_patterns(schema, defined) > limits.MAX_EXPORT_PATTERNS
    ):
        raise NotExportable


def _count_patterns(schema: Json, defined: Mapping[str, Json]) -> int:
    """How many patterns one text may have to match at once, or more.

    What engines do to find that out grows with the product of all of them.
    """
    known: dict[str, int] = {}

    def most(value: Json) -> int:
        if not isinstance(value, dict):
            return 0
        found = int("pattern" in value)
        for word, inner in value.items():
            if word == "$ref" and isinstance(inner, str):
                name = inner.removeprefix("#/$defs/")
                if name not in known:
                    known[name] = 0
                    known[name] = most(defined.get(name))
                found += known[name]
            elif word == "allOf":
                found += sum(map(most, inner))
            elif word == "patternProperties":
                found += sum(map(most, inner.values()))
            elif word == "properties":
                found += max(map(most, inner.values()), default=0)
            elif word in ("anyOf", "oneOf", "prefixItems"):
                found += max(map(most, inner), default=0)
            elif word in ("items", "additionalProperties"):
                found += most(inner)
        return found

    return most(schema)
