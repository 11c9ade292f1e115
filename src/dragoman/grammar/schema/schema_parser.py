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

from dragoman.grammar.regex.escape import escape_class_operators
from dragoman.grammar.schema import bounds, keywords, limits, simplify
from dragoman.grammar.schema.definitions import SchemaDefinitions
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.intersect import NodeIntersector
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Number,
    Object,
    ParsedSchema,
    SchemaReference,
    String,
)
from dragoman.grammar.schema.normalize import (
    CircularReference,
    TooManyReferences,
    normalize_definitions,
)
from dragoman.grammar.schema.pattern_properties import build_pattern_object
from dragoman.grammar.schema.property_limits import (
    limit_property_count,
    require_exactly_one,
    restrict_properties,
)
from dragoman.grammar.schema.schema_export import SchemaExporter, allows_escaped_names
from dragoman.grammar.schema.simplify import ANYTHING, NOTHING, union_nodes
from dragoman.output.arguments.json_pointer import escape_token
from dragoman.output.arguments.parameter_types import SYNONYMS
from dragoman.types import Json

_NUMBER_FIELDS = {
    "minimum": "minimum",
    "exclusiveMinimum": "exclusive_minimum",
    "maximum": "maximum",
    "exclusiveMaximum": "exclusive_maximum",
    "multipleOf": "multiple_of",
}
_STRING_FIELDS = {
    "maxLength": "max_length",
    "minLength": "min_length",
    "format": "format",
    "pattern": "pattern",
}


def parse_schema(schema: Json, *, param: str, strict: bool, for_tool: bool = False) -> ParsedSchema:
    """Parse a schema; errors and warnings name `param`, the request field it comes from.

    The parameters of a tool are an object, whatever type they declare, and may name types by a few
    synonyms that JSON Schema does not have.
    """
    if for_tool and (schema is None or schema == {}):
        return ParsedSchema(Object((), frozenset(), NOTHING))
    budget = limits.SchemaBudget(param)
    diagnostics = SchemaDiagnostics(param, strict=strict)
    parser = _SchemaParser(schema, budget, diagnostics, SYNONYMS if for_tool else {})
    try:
        limits.check_size(schema, budget)
        return parser.parse(must_be_object=for_tool)
    except RecursionError:
        budget.reject("too many levels of nesting")


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
        self._intersector = NodeIntersector(
            self._definitions.find, self._definitions.overapproximate, self._checker, budget
        )
        self._depth = 0
        self._export_count = self._export_text = 0

    def parse(self, *, must_be_object: bool) -> ParsedSchema:
        definitions = self._definitions.parse_all()
        root = definitions[""]
        if must_be_object:
            root = self._intersector.intersect(Object(), root) or root
        try:
            normalized, needed = normalize_definitions(root, definitions)
        except CircularReference as error:
            self._diagnostics.fail(error.name, "refers only to itself")
        except TooManyReferences:
            self._budget.reject("too many definitions that refer to each other")
        if isinstance(normalized, Nothing):
            is_no_object = must_be_object and not isinstance(definitions[""], Nothing)
            problem = "must allow an object" if is_no_object else "allows no value"
            self._diagnostics.fail("", problem)
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
            intersection = self._intersector.intersect(node, part)
            if intersection is None:
                inexpressible.append(part_place)
            else:
                node = intersection
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
        for keyword in keywords.UNENFORCED_KEYWORDS:
            is_root_id = keyword == "$id" and not place
            if keywords.is_unenforced(keyword, schema, self._synonyms) and not is_root_id:
                self._diagnostics.report_unenforced(f"{place}/{keyword}")

    def _parse_parts(
        self, schema: dict[str, Json], place: str, inexpressible: list[str]
    ) -> Iterator[tuple[str, Node]]:
        """Yield the parts that a value must match, each with its place."""
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
            yield part_place, self._parse(part, part_place)
        if "anyOf" in schema:
            yield f"{place}/anyOf", union_nodes(self._parse_list(schema["anyOf"], f"{place}/anyOf"))
        if "oneOf" in schema:
            yield f"{place}/oneOf", self._parse_one_of(schema["oneOf"], place, inexpressible)

    def _parse_list(self, schemas: list[Json], place: str) -> list[Node]:
        return [self._parse(schema, f"{place}/{index}") for index, schema in enumerate(schemas)]

    def _parse_one_of(self, schemas: list[Json], place: str, inexpressible: list[str]) -> Node:
        options = self._parse_list(schemas, f"{place}/oneOf")
        if self._intersector.are_mutually_exclusive(options):
            return union_nodes(options)
        groups = keywords.required_only_options(schemas)
        exclusive = None if groups is None else require_exactly_one(groups)
        if exclusive is None:
            inexpressible.append(f"{place}/oneOf")
        return union_nodes(options if exclusive is None else exclusive)

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
        if exported is None or allows_escaped_names(exported):
            return None
        merged = (keywords.APPLICATORS | {"enum", "const"}) & schema.keys()
        implied = [] if merged or "type" in exported else keywords.implied_types(schema)
        if isinstance(node, SchemaReference):
            node = self._definitions.overapproximate(node.name)
        types = implied or simplify.node_types(node)
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
                return simplify.imply_types([result], implied) if implied else result
        return None

    # types

    def _parse_types(self, schema: dict[str, Json], place: str, inexpressible: list[str]) -> Node:
        declared = keywords.declared_types(schema, self._synonyms)
        types = keywords.implied_types(schema) if declared is None else declared
        options = [self._parse_type(name, schema, place, inexpressible) for name in types]
        return simplify.imply_types(options, types) if declared is None else union_nodes(options)

    def _parse_type(
        self, type_name: str, schema: dict[str, Json], place: str, inexpressible: list[str]
    ) -> Node:
        match type_name:
            case "string":
                return self._parse_string(schema, place)
            case "number" | "integer":
                return self._parse_number(schema, place, integer=type_name == "integer")
            case "array":
                return self._parse_array(schema, place)
            case "object":
                return self._parse_object(schema, place, inexpressible)
        return BOOLEAN if type_name == "boolean" else NULL

    def _parse_string(self, schema: dict[str, Json], place: str) -> Node:
        fields = {
            field: schema[keyword] for keyword, field in _STRING_FIELDS.items() if keyword in schema
        }
        lengths = ("min_length", "max_length")
        fields |= {field: int(fields[field]) for field in lengths if field in fields}
        if fields.get("format") not in keywords.FORMATS:
            fields.pop("format", None)
        if "pattern" in fields:
            fields["pattern"] = escape_class_operators(fields["pattern"])
            if fields["pattern"] is None:
                self._diagnostics.report_unenforced(f"{place}/pattern")
        keyword_of_field = {field: keyword for keyword, field in _STRING_FIELDS.items()}
        return self._drop_unsupported(String(**fields), keyword_of_field, place)

    def _parse_number(self, schema: dict[str, Json], place: str, *, integer: bool) -> Node:
        fields, keyword_of_field = {}, {}
        for bound, (keyword, value) in keywords.numeric_bounds(schema).items():
            keyword_of_field[_NUMBER_FIELDS[bound]] = keyword
            rounded = keywords.round_bound_inwards(bound, value)
            fields[_NUMBER_FIELDS[bound]] = json.dumps(rounded)
        return self._drop_unsupported(Number(integer, **fields), keyword_of_field, place)

    def _drop_unsupported(
        self, node: String | Number, keyword_of_field: dict[str, str], place: str
    ) -> Node:
        """Drop the constraints that llguidance does not support, first those by themselves."""
        if bounds.has_empty_range(node):
            return NOTHING
        plain: String | Number = String() if isinstance(node, String) else Number(node.integer)
        for only_by_itself in (True, False):
            for field, keyword in keyword_of_field.items():
                value, default = getattr(node, field), getattr(plain, field)
                if value == default or self._checker.check_node(node) != "unsupported":
                    continue
                change: dict[str, Json] = {field: value}
                alone = replace(plain, **change)
                if not only_by_itself or self._checker.check_node(alone) == "unsupported":
                    self._diagnostics.report_unenforced(f"{place}/{keyword}")
                    change[field] = default
                    node = replace(node, **change)
        return NOTHING if self._checker.check_node(node) == "empty" else node

    def _parse_array(self, schema: dict[str, Json], place: str) -> Node:
        prefix, rest = keywords.item_keywords(schema)
        prefix_items = self._parse_list(schema.get(prefix, []), f"{place}/{prefix}")
        items = ANYTHING if rest is None else self._parse(schema[rest], f"{place}/{rest}")
        min_items, max_items = int(schema.get("minItems", 0)), schema.get("maxItems")
        max_items = None if max_items is None else int(max_items)
        return simplify.simplify_array(Array(tuple(prefix_items), items, min_items, max_items))

    def _parse_object(self, schema: dict[str, Json], place: str, inexpressible: list[str]) -> Node:
        properties = self._parse_properties("properties", schema, place)
        keyword = keywords.additional_keyword(schema)
        additional = (
            ANYTHING if keyword is None else self._parse(schema[keyword], f"{place}/{keyword}")
        )
        patterns = self._parse_properties("patternProperties", schema, place)
        node = Object(tuple(properties), frozenset(schema.get("required", ())), additional)
        values = [additional, *(value for _, value in patterns)]
        if patterns and any(value != ANYTHING for value in values):
            by_pattern = build_pattern_object(
                node, patterns, self._checker, self._intersector.intersect
            )
            if by_pattern is not None and not keywords.PROPERTY_SET_KEYWORDS & schema.keys():
                return by_pattern
            inexpressible.append(f"{place}/patternProperties")
            node = replace(node, additional=union_nodes(values))
        if "propertyNames" in schema:
            node = self._restrict_names(node, schema["propertyNames"], f"{place}/propertyNames")
        return self._limit_count(node, schema, place, inexpressible)

    def _parse_properties(
        self, keyword: str, schema: dict[str, Json], place: str
    ) -> list[tuple[str, Node]]:
        return [
            (name, self._parse(value, f"{place}/{keyword}/{escape_token(name)}"))
            for name, value in schema.get(keyword, {}).items()
        ]

    def _restrict_names(self, node: Object, schema: Json, place: str) -> Object:
        """Apply `propertyNames`; only lists of names are enforced."""
        names: Node | None = self._parse(schema, place)
        for _ in range(limits.MAX_DEPTH):
            if isinstance(names, SchemaReference):
                names = self._definitions.find(names.name)
        if names in (ANYTHING, String()):
            return node
        if not isinstance(names, Literals):
            self._diagnostics.report_unenforced(place)
            return node
        values = [json.loads(text) for text in names.values]
        return restrict_properties(node, [name for name in values if isinstance(name, str)])

    def _limit_count(
        self, node: Object, schema: dict[str, Json], place: str, inexpressible: list[str]
    ) -> Node:
        minimum, maximum = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        limited, remaining = limit_property_count(node, minimum, maximum)
        is_closed = isinstance(node.additional, Nothing)
        reliable_minimum = len(node.required) + 1 if is_closed else 1
        if "minProperties" in remaining and minimum > reliable_minimum:
            # llguidance counts a name twice if it occurs again with an escape
            remaining.remove("minProperties")
            self._diagnostics.report_unenforced(f"{place}/minProperties")
        inexpressible += [f"{place}/{keyword}" for keyword in remaining]
        return limited
