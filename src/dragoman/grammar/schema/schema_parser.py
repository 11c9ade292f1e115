"""Parses a client's JSON schema into nodes.

A schema consists of parts: what it says about each type of value, its `enum`, its `$ref`, and each
element of `allOf`, `anyOf` and `oneOf`. Each part is parsed, and the parts are intersected. Except
for what `ParsedSchema.warnings` reports, the result never allows more than the schema:

- Where nodes cannot express the intersection, llguidance's own schema compiler is asked to do it,
  and the result is a `LlguidanceSchema` node. If that cannot either, a strict schema is rejected,
  and otherwise the keyword is dropped with a warning.
- The result may allow less: a schema without `type` whose keywords are about objects, arrays,
  strings or numbers is restricted to these types.
- Upper bounds that no answer reaches are lowered, and bounds that llguidance would round are
  rounded inwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from dragoman.grammar.schema import keywords, limits, simplify
from dragoman.grammar.schema.algebra.difference import NodeDifference
from dragoman.grammar.schema.algebra.intersect import NodeIntersector
from dragoman.grammar.schema.algebra.pattern_properties import add_pattern_properties
from dragoman.grammar.schema.algebra.property_limits import (
    has_too_many_to_count,
    limit_property_count,
    list_name_restrictions,
    may_repeat_names,
)
from dragoman.grammar.schema.conditions import ConditionParser
from dragoman.grammar.schema.definitions import SchemaDefinitions
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    Anything,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Object,
    ParsedSchema,
    SchemaReference,
)
from dragoman.grammar.schema.normalize import (
    CircularReference,
    TooManyReferences,
    normalize_definitions,
)
from dragoman.grammar.schema.scalars import ScalarParser
from dragoman.grammar.schema.schema_export import SchemaExporter, allows_escaped_names, fixes_order
from dragoman.grammar.schema.simplify import ANYTHING, NOTHING, union_nodes
from dragoman.output.arguments.schemas.json_pointer import escape_token
from dragoman.output.arguments.schemas.parameter_types import SYNONYMS
from dragoman.output.arguments.schemas.schema_references import localize_references
from dragoman.types import Json


def parse_schema(schema: Json, *, param: str, strict: bool, for_tool: bool = False) -> ParsedSchema:
    """Parse a schema; errors and warnings name `param`, the request field it comes from.

    The parameters of a tool are an object, whatever type they declare, and may name types by a few
    synonyms that JSON Schema does not have.
    """
    if for_tool and (schema is None or schema == {}):
        return ParsedSchema(Object((), frozenset(), NOTHING))
    schema = localize_references(schema)
    # where nothing is left, a keyword that excludes values contradicts the rest of the schema
    for ignores_exclusions in (False,) if strict else (False, True):
        budget = limits.SchemaBudget(param)
        diagnostics = SchemaDiagnostics(param, strict=strict, ignores_exclusions=ignores_exclusions)
        diagnostics.keeps_all_types = strict and not for_tool  # formats rely on types
        parser = _SchemaParser(schema, budget, diagnostics, SYNONYMS if for_tool else {})
        try:
            limits.check_size(schema, budget)
            parsed = parser.parse(must_be_object=for_tool)
        except RecursionError:
            budget.reject("too many levels of nesting")
        if parsed is not None:
            return parsed
    is_no_object = for_tool and not parser.allows_nothing
    return diagnostics.fail("", "must allow an object" if is_no_object else "allows no value")


class _SchemaParser:
    """Parses one schema. Places in it are JSON pointers.

    The methods that take `inexpressible` add the pointers of keywords that nodes cannot express.
    """

    def __init__(
        self,
        schema: Json,
        budget: limits.SchemaBudget,
        diagnostics: SchemaDiagnostics,
        synonyms: dict[str, str],
    ) -> None:
        self._budget = budget
        self._diagnostics = diagnostics
        self._synonyms = synonyms
        self._definitions = SchemaDefinitions(schema, self._parse, budget, diagnostics)
        self._checker = LlguidanceChecker(budget)
        self._scalars = ScalarParser(self._checker, diagnostics)
        self._intersector = NodeIntersector(
            self._definitions.find, self._definitions.overapproximate, self._checker, budget
        )
        self._difference = NodeDifference(
            self._intersector,
            self._definitions.find,
            self._definitions.overapproximate,
            self._checker,
            budget,
            diagnostics,
        )
        self._conditions = ConditionParser(
            self._parse, self._intersector, self._difference, diagnostics
        )
        self.allows_nothing = False
        self._depth = 0
        self._export_count = self._export_text = 0

    def parse(self, *, must_be_object: bool) -> ParsedSchema | None:
        """Parse the schema; return None if no value matches it."""
        definitions = self._definitions.parse_all()
        root = definitions[""]
        if must_be_object:
            root = self._intersector.intersect(Object(), root) or root
        try:
            normalized, needed = normalize_definitions(root, definitions, self._diagnostics)
        except CircularReference as error:
            self._diagnostics.fail(error.name, "refers only to itself")
        except TooManyReferences:
            self._budget.reject("too many definitions that refer to each other")
        self.allows_nothing = isinstance(definitions[""], Nothing)
        if isinstance(normalized, Nothing):
            return None
        return ParsedSchema(normalized, needed, self._diagnostics.list_warnings())

    # composition

    def _parse(self, schema: Json, place: str) -> Node:
        self._budget.count_node()
        if isinstance(schema, bool):
            return ANYTHING if schema else NOTHING
        if not isinstance(schema, dict):
            self._diagnostics.fail(place, "must be a schema: an object, `true` or `false`")
        if self._depth >= limits.MAX_DEPTH:
            self._budget.reject(f"more than {limits.MAX_DEPTH} levels of nesting")
        self._depth += 1
        try:
            return self._parse_keywords(schema, place)
        finally:
            self._depth -= 1

    def _parse_keywords(self, schema: dict[str, Json], place: str) -> Node:
        self._check(schema, place)
        schema = limits.clamp_upper_bounds(schema)
        if keywords.is_false_schema(schema):
            return NOTHING
        inexpressible: list[str] = []
        node: Node = ANYTHING
        for part_place, part in self._parse_parts(schema, place, inexpressible):
            intersection = None if part is None else self._intersector.intersect(node, part)
            if intersection is None:
                inexpressible.append(part_place)
            else:
                node = intersection
        node = self._conditions.apply(node, schema, place)
        if simplify.count_nodes(node) > limits.MAX_NODES:
            self._budget.reject(f"more than {limits.MAX_NODES:,} options once it is merged")
        exported = self._export(schema, place, node) if inexpressible else None
        if exported is not None:
            return exported
        for pointer in inexpressible:
            self._diagnostics.report_unenforced(pointer)
        return node

    def _check(self, schema: dict[str, Json], place: str) -> None:
        """Reject an invalid schema, and report keywords that are never enforced."""
        invalid = keywords.find_invalid_keyword(schema, self._synonyms)
        if invalid is not None:
            self._diagnostics.fail(f"{place}/{escape_token(invalid[0])}", invalid[1])
        for keyword, limit in limits.MAX_LOWER_BOUNDS.items():
            if schema.get(keyword, 0) > limit:
                self._budget.reject(f"a `{keyword}` above {limit:,}")
        for keyword, limit in limits.MAX_LENGTHS.items():
            if len(schema.get(keyword, ())) > limit:
                self._budget.reject(f"`{keyword}` longer than {limit:,}")
        names = (*schema.get("properties", ()), *schema.get("required", ()))
        if any(len(name) > limits.MAX_NAME_LENGTH for name in names):
            self._budget.reject(f"a name longer than {limits.MAX_NAME_LENGTH:,} characters")
        for keyword in keywords.UNSUPPORTED_KEYWORDS.keys() - keywords.EXPRESSIBLE_KEYWORDS:
            is_root_id = keyword == "$id" and not place
            if keywords.restricts(keyword, schema, self._synonyms) and not is_root_id:
                self._diagnostics.report_unenforced(f"{place}/{keyword}")

    def _parse_parts(
        self, schema: dict[str, Json], place: str, inexpressible: list[str]
    ) -> Iterator[tuple[str, Node | None]]:
        """Yield the parts that a value must match, each with its place; None is inexpressible."""
        yield place, self._parse_types(schema, place, inexpressible)
        for keyword in ("enum", "const"):
            if keyword in schema:
                values = schema[keyword] if keyword == "enum" else [schema[keyword]]
                texts = tuple(dict.fromkeys(map(json.dumps, values)))
                self._budget.count_values(texts)
                yield f"{place}/{keyword}", Literals(texts)
        if "$ref" in schema:
            reference = self._definitions.parse_reference(schema["$ref"], f"{place}/$ref")
            yield f"{place}/$ref", reference
        for index, part in enumerate(schema.get("allOf", ())):
            part_place = f"{place}/allOf/{index}"
            if not keywords.is_conditional(part):
                yield part_place, self._parse(part, part_place)
        if "anyOf" in schema:
            yield f"{place}/anyOf", union_nodes(self._parse_list(schema["anyOf"], f"{place}/anyOf"))
        if "oneOf" in schema:
            yield f"{place}/oneOf", self._parse_one_of(schema["oneOf"], place, inexpressible)
        yield from self._conditions.parse_dependencies(schema, place)

    def _parse_list(self, schemas: list[Json], place: str) -> list[Node]:
        return [self._parse(schema, f"{place}/{index}") for index, schema in enumerate(schemas)]

    def _parse_one_of(self, schemas: list[Json], place: str, inexpressible: list[str]) -> Node:
        options = self._parse_list(schemas, f"{place}/oneOf")
        if self._difference.are_mutually_exclusive(options):
            return union_nodes(options)
        is_exact = self._diagnostics.is_enforced(f"{place}/oneOf")
        exclusive = self._difference.choose_one(options) if is_exact else None
        if exclusive is None:
            inexpressible.append(f"{place}/oneOf")
        return union_nodes(options) if exclusive is None else exclusive

    def _export(self, schema: dict[str, Json], place: str, node: Node) -> Node | None:
        """Return a schema as a node for llguidance's schema compiler, if that supports it.

        `node` allows at least what the schema allows.
        """
        self._export_count += 1
        if self._export_count > limits.MAX_EXPORTS:
            return None
        exporter = SchemaExporter(
            self._definitions.resolve_and_parse,
            self._diagnostics.unenforced,
            self._synonyms,
            self._budget,
        )
        exported = exporter.export(schema, place)
        if exported is None or allows_escaped_names(exported) or fixes_order(exported):
            return None
        merged = (keywords.APPLICATORS | {"enum", "const"}) & schema.keys()
        implied = [] if merged or "type" in exported else keywords.find_implied_types(schema)
        if isinstance(node, SchemaReference):
            node = self._definitions.overapproximate(node.name)
        types = implied or simplify.get_node_types(node)
        # the writers profit from a `type`, but llguidance may not support it there
        candidates = [{"type": types} | exported] if types else []
        candidates += [] if implied else [exported]
        for candidate in candidates:
            text = json.dumps(candidate)
            self._export_text += len(text)
            if self._export_text > limits.MAX_EXPORT_TEXT:
                return None
            verdict = self._checker.check(candidate)
            if verdict != "unsupported":
                result = NOTHING if verdict == "empty" else LlguidanceSchema(text)
                return simplify.imply_types([result], implied, place) if implied else result
        return None

    # types

    def _parse_types(self, schema: dict[str, Json], place: str, inexpressible: list[str]) -> Node:
        declared = keywords.read_declared_types(schema, self._synonyms)
        types = keywords.find_implied_types(schema) if declared is None else declared
        options = [self._parse_type(name, schema, place, inexpressible) for name in types]
        if declared is None:
            return simplify.imply_types(options, types, place)
        return union_nodes(options)

    def _parse_type(
        self, type_name: str, schema: dict[str, Json], place: str, inexpressible: list[str]
    ) -> Node:
        match type_name:
            case "string":
                return self._scalars.parse_string(schema, place)
            case "number" | "integer":
                return self._scalars.parse_number(schema, place, integer=type_name == "integer")
            case "array":
                return self._parse_array(schema, place)
            case "object":
                return self._parse_object(schema, place, inexpressible)
        return BOOLEAN if type_name == "boolean" else NULL

    def _parse_array(self, schema: dict[str, Json], place: str) -> Node:
        prefix, rest = keywords.get_item_keywords(schema)
        prefix_items = self._parse_list(schema.get(prefix, []), f"{place}/{prefix}")
        items = ANYTHING if rest is None else self._parse(schema[rest], f"{place}/{rest}")
        min_items, max_items = int(schema.get("minItems", 0)), schema.get("maxItems")
        max_items = None if max_items is None else int(max_items)
        node = simplify.simplify_array(Array(tuple(prefix_items), items, min_items, max_items))
        for keyword in ("contains", "uniqueItems"):
            if keywords.restricts(keyword, schema, self._synonyms):
                constraint = Array(unique=True)
                if keyword == "contains":
                    contained = self._parse(schema["contains"], f"{place}/contains")
                    is_any = isinstance(contained, Anything)
                    constraint = Array(contains=contained, min_items=int(is_any))
                restricted = self._intersector.intersect(node, constraint)
                if restricted is None:
                    self._diagnostics.report_unenforced(f"{place}/{keyword}")
                node = restricted or node
        for keyword in ("minContains", "maxContains"):
            if "contains" in schema and schema.get(keyword, 1) not in (0, 1):
                self._diagnostics.report_unenforced(f"{place}/{keyword}")
        return node

    def _parse_object(self, schema: dict[str, Json], place: str, inexpressible: list[str]) -> Node:
        properties = self._parse_properties("properties", schema, place)
        keyword = keywords.get_additional_keyword(schema)
        additional = (
            ANYTHING if keyword is None else self._parse(schema[keyword], f"{place}/{keyword}")
        )
        patterns = self._parse_properties("patternProperties", schema, place)
        node = Object(tuple(properties), frozenset(schema.get("required", ())), additional)
        values = [additional, *(value for _, value in patterns)]
        if patterns and any(value != ANYTHING for value in values):
            by_pattern = add_pattern_properties(
                node, patterns, self._checker, self._intersector.intersect
            )
            if by_pattern is None:
                inexpressible.append(f"{place}/patternProperties")
                by_pattern = replace(node, additional=union_nodes(values))
            node = by_pattern
        minimum, maximum = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        limited = limit_property_count(node, minimum, None if maximum is None else int(maximum))
        if has_too_many_to_count(limited):
            keyword = "minProperties" if maximum is None else "maxProperties"
            self._diagnostics.report_unenforced(f"{place}/{keyword}")
            limited = node
        if "propertyNames" in schema:
            limited = self._restrict_names(
                limited, schema["propertyNames"], f"{place}/propertyNames"
            )
        if may_repeat_names(limited):
            self._diagnostics.report_unenforced(f"{place}/minProperties")
        return limited

    def _parse_properties(
        self, keyword: str, schema: dict[str, Json], place: str
    ) -> list[tuple[str, Node]]:
        return [
            (name, self._parse(value, f"{place}/{keyword}/{escape_token(name)}"))
            for name, value in schema.get(keyword, {}).items()
        ]

    def _restrict_names(self, node: Node, schema: Json, place: str) -> Node:
        """Apply `propertyNames`."""
        names: Node | None = self._parse(schema, place)
        for _ in range(limits.MAX_DEPTH):
            if isinstance(names, SchemaReference):
                names = self._definitions.find(names.name)
        restrictions = list_name_restrictions(names, self._checker, self._intersector.intersect)
        for restriction in (None,) if restrictions is None else restrictions:
            restricted = restriction and self._intersector.intersect(node, restriction)
            if restricted is None:
                self._diagnostics.report_unenforced(place)
            node = restricted or node
        return node
