"""Intersects nodes: what two nodes both allow, and whether that is nothing.

The results are exact. Where nodes cannot express one, or it would take too long, it is None
("unknown"). A schema without `type` counts as written here: whether the options of a `oneOf`
exclude each other depends on what the schema says, not on the types that it implies.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dragoman.grammar.schema import bounds, limits
from dragoman.grammar.schema.llguidance_check import LlguidanceChecker
from dragoman.grammar.schema.nodes import (
    AnyOf,
    Anything,
    Array,
    Literals,
    LlguidanceSchema,
    Node,
    Nothing,
    Number,
    Object,
    SchemaReference,
    String,
)
from dragoman.grammar.schema.simplify import (
    NOTHING,
    ImpliedTypes,
    canonical_json,
    count_nodes,
    covers_types_of,
    item_node,
    list_options,
    simplify_array,
    simplify_object,
    union_nodes,
)
from dragoman.types import Json


class NodeIntersector:
    """Intersects and compares the nodes of one schema.

    `find_definition` returns the node of a definition, or None while it is being parsed;
    `overapproximate` always returns one, which allows at least what the definition allows.
    """

    def __init__(
        self,
        find_definition: Callable[[str], Node | None],
        overapproximate: Callable[[str], Node],
        checker: LlguidanceChecker,
        budget: limits.SchemaBudget,
    ) -> None:
        self._find_definition = find_definition
        self._overapproximate = overapproximate
        self._checker = checker
        self._budget = budget
        self._open_references: set[str] = set()
        self._literal_values: dict[Literals, set[str]] = {}
        self._depth = 0

    def intersect(self, left: Node, right: Node) -> Node | None:
        """Return what both nodes allow, or None if nodes cannot express it."""
        self._budget.count_steps()
        for node, other in ((left, right), (right, left)):
            if isinstance(node, Anything):
                return other
            if isinstance(node, Nothing):
                return node
        if self._depth >= limits.MAX_DEPTH:
            return None
        self._depth += 1
        try:
            return self._intersect(left, right)
        finally:
            self._depth -= 1

    def _intersect(self, left: Node, right: Node) -> Node | None:
        if isinstance(left, SchemaReference):
            return self._intersect_reference(left, right)
        if isinstance(right, SchemaReference):
            return self._intersect_reference(right, left)
        if isinstance(left, LlguidanceSchema) or isinstance(right, LlguidanceSchema):
            return _intersect_llguidance_schema(left, right)
        if isinstance(left, AnyOf) or isinstance(right, AnyOf):
            return self._intersect_options(left, right)
        if isinstance(left, Literals):
            return self._filter_literals(left, right)
        if isinstance(right, Literals):
            return self._filter_literals(right, left)
        match left, right:
            case String(), String():
                return self._intersect_strings(left, right)
            case Number(), Number():
                return self._intersect_numbers(left, right)
            case Array(), Array():
                return self._intersect_arrays(left, right)
            case Object(), Object():
                return self._intersect_objects(left, right)
        return NOTHING

    def _intersect_reference(self, reference: SchemaReference, other: Node) -> Node | None:
        name = reference.name
        if reference == other or covers_types_of(other, self._overapproximate(name)):
            return reference
        definition = None if name in self._open_references else self._find_definition(name)
        if definition is None:
            return None
        self._budget.count_steps(count_nodes(definition))
        self._open_references.add(name)
        try:
            return self.intersect(definition, other)
        finally:
            self._open_references.discard(name)

    def _intersect_options(self, left: Node, right: Node) -> Node | None:
        lefts = left.options if isinstance(left, AnyOf) else (left,)
        rights = right.options if isinstance(right, AnyOf) else (right,)
        self._budget.count_steps(count_nodes(left) * len(rights) + count_nodes(right) * len(lefts))
        both_implied = isinstance(left, ImpliedTypes) and isinstance(right, ImpliedTypes)
        intended: list[Node] = []
        unintended: list[Node] = []
        for left_index, left_option in enumerate(lefts):
            for right_index, right_option in enumerate(rights):
                common = self.intersect(left_option, right_option)
                if common is None:
                    return None
                is_unintended = both_implied and not (
                    _is_intended(left, left_index) or _is_intended(right, right_index)
                )
                (unintended if is_unintended else intended).append(common)
        options = list_options(union_nodes(intended))
        rest = list_options(union_nodes(unintended))
        if len(options) > max(limits.MAX_OPTIONS, len(lefts), len(rights)):
            return None
        if options and rest:
            return ImpliedTypes((*options, *rest), len(options))
        return union_nodes((*options, *rest))

    def _filter_literals(self, literals: Literals, other: Node) -> Node | None:
        accepted = []
        for text in literals.values:
            is_accepted = self.accepts(json.loads(text), other)
            if is_accepted is None:
                return None
            accepted += [text] if is_accepted else []
        return Literals(tuple(accepted)) if accepted else NOTHING

    def _intersect_strings(self, left: String, right: String) -> Node | None:
        patterns = {left.pattern, right.pattern} - {None}
        formats = {left.format, right.format} - {None}
        if len(patterns) > 1 or len(formats) > 1:
            return None
        common = String(
            max(left.min_length, right.min_length),
            bounds.smaller_limit(left.max_length, right.max_length),
            left.pattern or right.pattern,
            left.format or right.format,
        )
        return self._check_satisfiable(common)

    def _intersect_numbers(self, left: Number, right: Number) -> Node | None:
        multiple_of = bounds.common_multiple(left.multiple_of, right.multiple_of)
        if multiple_of == "":
            return None
        common = Number(
            left.integer or right.integer,
            bounds.tighter_bound(left.minimum, right.minimum, max),
            bounds.tighter_bound(left.maximum, right.maximum, min),
            bounds.tighter_bound(left.exclusive_minimum, right.exclusive_minimum, max),
            bounds.tighter_bound(left.exclusive_maximum, right.exclusive_maximum, min),
            multiple_of,
        )
        return self._check_satisfiable(common)

    def _check_satisfiable(self, node: String | Number) -> Node | None:
        if bounds.has_empty_range(node):
            return NOTHING
        verdict = self._checker.check_node(node)
        return NOTHING if verdict == "empty" else None if verdict == "unsupported" else node

    def _intersect_arrays(self, left: Array, right: Array) -> Node | None:
        prefix_items = []
        for index in range(max(len(left.prefix_items), len(right.prefix_items))):
            common = self.intersect(item_node(left, index), item_node(right, index))
            if common is None:
                return None
            prefix_items.append(common)
        items = self.intersect(left.items, right.items)
        if items is None:
            return None
        min_items = max(left.min_items, right.min_items)
        max_items = bounds.smaller_limit(left.max_items, right.max_items)
        return simplify_array(Array(tuple(prefix_items), items, min_items, max_items))

    def _intersect_objects(self, left: Object, right: Object) -> Node | None:
        properties = []
        lefts, rights = dict(left.properties), dict(right.properties)
        for name in dict.fromkeys((*lefts, *rights)):
            common = self.intersect(
                lefts.get(name, left.additional), rights.get(name, right.additional)
            )
            if common is None:
                return None
            properties.append((name, common))
        additional = self.intersect(left.additional, right.additional)
        if additional is None:
            return None
        required = left.required | right.required
        return simplify_object(Object(tuple(properties), required, additional))

    # values

    def accepts(self, value: Json, node: Node) -> bool | None:
        """Whether a node allows a value, or None if unknown. Formats are not considered."""
        self._budget.count_steps()
        if self._depth >= limits.MAX_DEPTH:
            return None
        self._depth += 1
        try:
            return self._accepts(value, node)
        finally:
            self._depth -= 1

    def _accepts(self, value: Json, node: Node) -> bool | None:
        match node:
            case Anything():
                return True
            case Nothing():
                return False
            case Literals():
                return self._accepts_literal(value, node)
            case String():
                return isinstance(value, str) and self._accepts_string(value, node)
            case Number():
                return bounds.number_matches(value, node)
            case AnyOf():
                return _any(self.accepts(value, option) for option in node.options)
            case SchemaReference():
                definition = self._find_definition(node.name)
                return None if definition is None else self.accepts(value, definition)
            case Array():
                return isinstance(value, list) and self._accepts_array(value, node)
            case Object():
                return isinstance(value, dict) and self._accepts_object(value, node)
        return None

    def _accepts_literal(self, value: Json, node: Literals) -> bool:
        if node not in self._literal_values:
            self._budget.count_steps(len(node.values))
            self._literal_values[node] = {canonical_json(json.loads(text)) for text in node.values}
        return canonical_json(value) in self._literal_values[node]

    def _accepts_string(self, value: str, node: String) -> bool | None:
        if not _is_within(len(value), node.min_length, node.max_length):
            return False
        return True if node.pattern is None else self._checker.pattern_matches(value, node.pattern)

    def _accepts_array(self, value: list[Json], node: Array) -> bool | None:
        if not _is_within(len(value), node.min_items, node.max_items):
            return False
        return _all(self.accepts(item, item_node(node, index)) for index, item in enumerate(value))

    def _accepts_object(self, value: dict[str, Json], node: Object) -> bool | None:
        if not node.required <= value.keys():
            return False
        properties = dict(node.properties)
        return _all(
            self.accepts(item, properties.get(name, node.additional))
            for name, item in value.items()
        )

    # options

    def are_mutually_exclusive(self, options: Sequence[Node]) -> bool:
        """Whether it is certain that no value matches two of the options."""
        if self._have_discriminator(options):
            return True
        pairs = itertools.permutations(options, 2)
        return all(self.are_disjoint(left, right) for left, right in pairs)

    def _have_discriminator(self, options: Sequence[Node]) -> bool:
        """Whether all options require some property, and its literal values are all different."""
        objects = [node for node in map(self._resolve, options) if isinstance(node, Object)]
        if len(objects) < len(options):
            return False
        tables = [dict(node.properties) for node in objects]
        for name in frozenset.intersection(*(node.required for node in objects)):
            tags = [tag for table in tables if isinstance(tag := table.get(name), Literals)]
            if len(tags) == len(tables):
                self._budget.count_steps(sum(len(tag.values) for tag in tags))
                values = [canonical_json(json.loads(text)) for tag in tags for text in tag.values]
                if len(set(values)) == len(values):
                    return True
        return False

    def _resolve(self, node: Node) -> Node:
        return self._overapproximate(node.name) if isinstance(node, SchemaReference) else node

    def are_disjoint(self, left: Node, right: Node) -> bool:
        """Whether it is certain that no value matches both nodes.

        Of the types that `left` implies, only the intended count, as only they remain.
        """
        self._budget.count_steps()
        if self._depth >= limits.MAX_DEPTH:
            return False
        left, right = self._resolve(left), self._resolve(right)
        self._depth += 1
        try:
            return self._are_disjoint(
                left.intended if isinstance(left, ImpliedTypes) else left, right
            )
        finally:
            self._depth -= 1

    def _are_disjoint(self, left: Node, right: Node) -> bool:
        if isinstance(left, Nothing) or isinstance(right, Nothing):
            return True
        if isinstance(left, AnyOf):
            return all(self.are_disjoint(option, right) for option in left.options)
        if isinstance(right, AnyOf):
            return all(self.are_disjoint(left, option) for option in right.options)
        if isinstance(left, Literals):
            return all(self.accepts(json.loads(text), right) is False for text in left.values)
        if isinstance(right, Literals):
            return all(self.accepts(json.loads(text), left) is False for text in right.values)
        if isinstance(left, SchemaReference) or isinstance(right, SchemaReference):
            return self.are_disjoint(left, right)
        unknown = Anything | LlguidanceSchema
        if isinstance(left, unknown) or isinstance(right, unknown):
            return False
        match left, right:
            case Object(), Object():
                return self._are_disjoint_objects(left, right)
            case String(), String():
                # we enforce formats, but for JSON Schema they are annotations
                left, right = replace(left, format=None), replace(right, format=None)
                return isinstance(self.intersect(left, right), Nothing)
            case Number(), Number():
                left, right = bounds.drop_rounded_bounds(left), bounds.drop_rounded_bounds(right)
                return isinstance(self.intersect(left, right), Nothing)
        return type(left) is not type(right)

    def _are_disjoint_objects(self, left: Object, right: Object) -> bool:
        lefts, rights = dict(left.properties), dict(right.properties)
        names = sorted(left.required | right.required)
        # literals first: most discriminators are literals
        names.sort(key=lambda name: not isinstance(lefts.get(name), Literals))
        return any(
            self.are_disjoint(lefts.get(name, left.additional), rights.get(name, right.additional))
            for name in names
        )


def _is_intended(node: Node, index: int) -> bool:
    return isinstance(node, ImpliedTypes) and index < node.intended_count


def _is_within(length: int, minimum: int, maximum: int | None) -> bool:
    return length >= minimum and (maximum is None or length <= maximum)


def _intersect_llguidance_schema(left: Node, right: Node) -> Node | None:
    for node, other in ((left, right), (right, left)):
        if isinstance(node, LlguidanceSchema) and (
            node == other or (node.object_node and other == Object())
        ):
            return node
    return None


def _any(results: Iterable[bool | None]) -> bool | None:
    """Like `any`, but None if a result is unknown and none is true."""
    is_unknown = False
    for result in results:
        if result:
            return True
        is_unknown = is_unknown or result is None
    return None if is_unknown else False


def _all(results: Iterable[bool | None]) -> bool | None:
    """Like `all`, but None if a result is unknown and none is false."""
    is_unknown = False
    for result in results:
        if result is False:
            return False
        is_unknown = is_unknown or result is None
    return None if is_unknown else True
