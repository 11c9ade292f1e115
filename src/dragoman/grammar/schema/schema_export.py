"""Exports parts of a client's schema to llguidance's own schema compiler.

The compiler gets a self-contained copy: the keywords that assert something, without those that are
reported as unenforced, and with the definitions that it refers to. It recurses into every reference
and multiplies out what it merges, so the depth and size are checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from dragoman.grammar.regex.schema_pattern import is_weakened_by_llguidance, translate_pattern
from dragoman.grammar.schema import keywords, limits
from dragoman.output.arguments.schemas.json_pointer import escape_token
from dragoman.types import Json

STEPS_PER_COPY = 8  # of the budget, for each copied subschema
_SCHEMA_MAPS = frozenset({"properties", "patternProperties"})
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_COPIED_KEYWORDS = frozenset({"enum", "const", "required", "minLength", "maxLength", "format"})
_COPIED_KEYWORDS |= {"minItems", "maxItems", "minProperties", "maxProperties", "propertyNames"}
_COPIED_KEYWORDS |= keywords.UNSUPPORTED_KEYWORDS.keys() - {"$id"}


class NotExportable(Exception):
    """A schema is invalid, or too large for llguidance's schema compiler."""


class SchemaExporter:
    """Copies a part of a schema with all that it refers to.

    `resolve` returns the pointer and the schema of a reference at a place, after parsing it;
    `unenforced` contains the pointers of the keywords to leave out.
    """

    def __init__(
        self,
        resolve: Callable[[str, str], tuple[str, Json]],
        unenforced: Container[str],
        synonyms: Mapping[str, str],
        budget: limits.SchemaBudget,
    ) -> None:
        self._resolve = resolve
        self._unenforced = unenforced
        self._synonyms = synonyms
        self._budget = budget
        self._targets: dict[str, Json] = {}  # of references, by pointer
        self._total_depth = 0
        self._max_depth = 0

    def export(self, schema: Mapping[str, Json], place: str) -> dict[str, Json] | None:
        """Return the copy, or None if llguidance's schema compiler should not get it."""
        try:
            copy = self._copy_root(schema, place)
            definitions: dict[str, Json] = {}
            while len(definitions) < len(self._targets):
                pointer = list(self._targets)[len(definitions)]
                target = self._targets[pointer]
                definitions[self._name_definition(pointer)] = self._copy_root(target, pointer)
            _check_weight(copy, definitions)
        except NotExportable:
            return None
        if not isinstance(copy, dict):
            return {"anyOf": [copy]}
        return copy | {"$defs": definitions} if definitions else copy

    def _copy_root(self, schema: Json, place: str) -> Json:
        self._max_depth = 0
        copy = self._copy(schema, place)
        self._total_depth += self._max_depth
        if self._total_depth > limits.MAX_EXPORT_DEPTH:
            raise NotExportable
        return copy

    def _name_definition(self, pointer: str) -> str:
        return f"d{list(self._targets).index(pointer)}"

    def _copy(self, schema: Json, place: str, depth: int = 1) -> Json:
        self._budget.count_steps(STEPS_PER_COPY)
        self._max_depth = max(self._max_depth, depth)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or keywords.find_invalid_keyword(schema, self._synonyms):
            raise NotExportable
        if keywords.is_false_schema(schema):
            return False
        schema = limits.clamp_upper_bounds(schema)
        copy: dict[str, Json] = {}
        for keyword, value in schema.items():
            copy |= self._copy_keyword(schema, keyword, value, place, depth)
        for bound, (_, value) in keywords.read_numeric_bounds(schema).items():
            copy[bound] = keywords.round_bound_inwards(bound, value)
        return {
            keyword: value
            for keyword, value in copy.items()
            if f"{place}/{keyword}" not in self._unenforced
        }

    def _copy_keyword(
        self, schema: dict[str, Json], keyword: str, value: Json, parent: str, depth: int
    ) -> dict[str, Json]:
        place = f"{parent}/{keyword}"
        is_dropped = place in self._unenforced
        prefix_items, items = keywords.get_item_keywords(schema)
        if keyword == "oneOf" and is_dropped:
            return {"anyOf": self._copy_list(value, place, depth)}
        if keyword == "additionalProperties" or keywords.get_additional_keyword(schema) == keyword:
            return {"additionalProperties": self._copy(value, place, depth + 1)}
        has_no_effect = keyword in keywords.UNSUPPORTED_KEYWORDS and not keywords.restricts(
            keyword, schema, self._synonyms
        )
        if is_dropped or has_no_effect:
            return {keyword: value} if keyword == "format" and value in keywords.FORMATS else {}
        if keyword == "propertyNames" and value in (True, {}, {"type": "string"}):
            return {}
        if keyword == "type":
            return {"type": list(keywords.read_declared_types(schema, self._synonyms) or ())}
        if keyword == "$ref":
            return {"$ref": f"#/$defs/{self._copy_reference(value, place)}"}
        if keyword == "pattern":
            return {"pattern": _copy_pattern(value)}
        if keyword == prefix_items:
            return {"prefixItems": self._copy_list(value, place, depth)} if value else {}
        if keyword == items:
            return {"items": self._copy(value, place, depth + 1)}
        if keyword in _SCHEMA_LISTS:
            return {keyword: self._copy_list(value, place, depth)}
        if keyword in _SCHEMA_MAPS:
            copies = {
                name: self._copy(inner, f"{place}/{escape_token(name)}", depth + 1)
                for name, inner in value.items()
            }
            return {keyword: copies}
        return {keyword: value} if keyword in _COPIED_KEYWORDS else {}

    def _copy_list(self, schemas: list[Json], place: str, depth: int) -> list[Json]:
        return [
            self._copy(schema, f"{place}/{index}", depth + 1)
            for index, schema in enumerate(schemas)
            if f"{place}/{index}" not in self._unenforced
        ]

    def _copy_reference(self, reference: str, place: str) -> str:
        pointer, target = self._resolve(reference, place)
        self._targets.setdefault(pointer, target)
        return self._name_definition(pointer)


def allows_escaped_names(schema: dict[str, Json]) -> bool:
    """Whether a known property could be written under an escaped name, and escape its constraint.

    llguidance's schema compiler treats a name with escapes as one that it does not know.
    """
    return _OpenObjectSearch(schema.get("$defs", {})).search(schema)


def fixes_order(schema: dict[str, Json]) -> bool:
    """Whether llguidance's schema compiler would fix an order of properties."""
    stack: list[Json] = [schema, *schema.get("$defs", {}).values()]
    while stack:
        current = stack.pop()
        if isinstance(current, dict):
            if current.get("properties") or current.get("required"):
                return True
            stack += _list_subschemas(current)
    return False


class _OpenObjectSearch:
    """Searches a schema for objects that constrain some properties and allow additional ones."""

    def __init__(self, definitions: Mapping[str, Json]) -> None:
        self._definitions = definitions

    def search(self, schema: Json) -> bool:
        stack: list[Json] = [schema, *self._definitions.values()]
        while stack:
            current = stack.pop()
            if isinstance(current, dict):
                constrains = self._constrains_properties(current, set())
                if constrains and not self._is_closed(current, set()):
                    return True
                stack += _list_subschemas(current)
        return False

    def _list_in_place_schemas(
        self, schema: Mapping[str, Json], seen: set[str]
    ) -> dict[str, list[Json]]:
        """Return the schemas that apply to the same value, by keyword."""
        schemas = {keyword: schema[keyword] for keyword in _SCHEMA_LISTS if keyword in schema}
        name = schema.get("$ref", "").removeprefix("#/$defs/")
        if name and name not in seen:
            seen.add(name)
            schemas["$ref"] = [self._definitions.get(name, True)]
        return schemas

    def _constrains_properties(self, schema: Json, seen: set[str]) -> bool:
        """Whether some properties have other constraints than the additional ones."""
        if not isinstance(schema, dict):
            return False
        additional = schema.get("additionalProperties", True)
        unconstrained = (additional, {}) if additional is True else (additional,)
        values = [value for keyword in _SCHEMA_MAPS for value in schema.get(keyword, {}).values()]
        return any(value not in unconstrained for value in values) or any(
            self._constrains_properties(inner, seen)
            for schemas in self._list_in_place_schemas(schema, seen).values()
            for inner in schemas
        )

    def _is_closed(self, schema: Json, seen: set[str]) -> bool:
        """Whether a schema allows no objects with additional properties."""
        if not isinstance(schema, dict):
            return schema is False
        if "enum" in schema or "const" in schema or "object" not in schema.get("type", "object"):
            return True
        if schema.get("additionalProperties") is False:
            return True
        return any(
            (all if keyword in ("anyOf", "oneOf") else any)(
                self._is_closed(inner, seen) for inner in schemas
            )
            for keyword, schemas in self._list_in_place_schemas(schema, seen).items()
        )


def _copy_pattern(pattern: str) -> str:
    translated = translate_pattern(pattern)
    if translated is None:
        return pattern
    if is_weakened_by_llguidance(translated):
        raise NotExportable
    return translated


def _list_subschemas(schema: dict[str, Json]) -> list[Json]:
    """Return the schemas directly below one."""
    schemas = [value for keyword in _SCHEMA_MAPS for value in schema.get(keyword, {}).values()]
    for keyword in (*_SCHEMA_LISTS, "prefixItems"):
        schemas += schema.get(keyword, ())
    return [*schemas, schema.get("items"), schema.get("additionalProperties")]


def _check_weight(schema: Json, definitions: Mapping[str, Json]) -> None:
    """Reject a schema that is too large with every reference replaced by its target."""
    is_too_heavy = _measure_weight(schema, definitions) > limits.MAX_EXPORT_WEIGHT
    if is_too_heavy or _count_patterns(schema, definitions) > limits.MAX_EXPORT_PATTERNS:
        raise NotExportable


def _measure_weight(schema: Json, definitions: Mapping[str, Json]) -> int:
    """Count the arrays and objects of a schema."""
    weights: dict[str, int] = {}  # by definition

    def measure(value: Json) -> int:
        if isinstance(value, list):
            return 1 + sum(map(measure, value))
        if not isinstance(value, dict):
            return 0
        total = 1
        for keyword, inner in value.items():
            if keyword == "$ref" and isinstance(inner, str):
                name = inner.removeprefix("#/$defs/")
                if name not in weights:
                    weights[name] = 0  # for references from inside it
                    weights[name] = measure(definitions.get(name))
                total += weights[name]
            elif keyword not in ("enum", "const", "required"):
                total += measure(inner)
        return total

    return measure(schema)


def _count_patterns(schema: Json, definitions: Mapping[str, Json]) -> int:
    """Return an upper bound of how many patterns one string must match at once.

    The time that llguidance takes for them grows with the product of their sizes.
    """
    counts: dict[str, int] = {}  # by definition

    def count(value: Json) -> int:
        if not isinstance(value, dict):
            return 0
        total = int("pattern" in value)
        for keyword, inner in value.items():
            if keyword == "$ref" and isinstance(inner, str):
                name = inner.removeprefix("#/$defs/")
                if name not in counts:
                    counts[name] = 0  # for references from inside it
                    counts[name] = count(definitions.get(name))
                total += counts[name]
            elif keyword == "allOf":
                total += sum(map(count, inner))
            elif keyword == "patternProperties":
                total += sum(map(count, inner.values()))
            elif keyword == "properties":
                total += max(map(count, inner.values()), default=0)
            elif keyword in ("anyOf", "oneOf", "prefixItems"):
                total += max(map(count, inner), default=0)
            elif keyword in ("items", "additionalProperties"):
                total += count(inner)
        return total

    return count(schema)
