"""Intersects nodes: what two nodes both allow, and whether a node allows a value.

The results are exact. Where nodes cannot express one, or it would take too long, it is None
("unknown"). A schema without `type` counts as written here, not with the types that it implies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.regex.rewrite import rewrite_regex
from dragoman.grammar.schema import limits
from dragoman.grammar.schema.algebra import bounds
from dragoman.grammar.schema.algebra.pattern_properties import find_property, intersect_patterns
from dragoman.grammar.schema.algebra.property_limits import has_too_many_to_count
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
    ANYTHING,
    NOTHING,
    ImpliedTypes,
    count_nodes,
    covers_types_of,
    get_item_node,
    list_options,
    simplify_array,
    simplify_object,
    union_nodes,
    write_canonical_json,
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
            place = left.place if isinstance(left, ImpliedTypes) else ""
            return ImpliedTypes((*options, *rest), len(options), place)
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
            bounds.choose_smaller_limit(left.max_length, right.max_length),
            left.pattern or right.pattern,
            left.format or right.format,
            tuple(dict.fromkeys((*left.excluded_patterns, *right.excluded_patterns))),
        )
        if common.excluded_patterns:
            return self._check_excluded(common)
        return self._check_satisfiable(common)

    def _check_excluded(self, node: String) -> Node | None:
        """Return a node with excluded patterns, or None if we cannot write it."""
        if bounds.has_empty_range(node) or node.pattern in node.excluded_patterns:
            return NOTHING
        is_bounded = node.max_length is None or node.max_length <= limits.MAX_EXCLUDED_LENGTH
        is_supported = node.format is None and all(
            rewrite_regex(to_full_match(pattern)) is not None
            for pattern in (*node.excluded_patterns, node.pattern)
            if pattern is not None
        )
        if not is_bounded or not is_supported:
            return None
        verdict = self._checker.check_excluded(node)
        return NOTHING if verdict == "empty" else None if verdict == "unsupported" else node

    def _intersect_numbers(self, left: Number, right: Number) -> Node | None:
        multiple_of = bounds.compute_common_multiple(left.multiple_of, right.multiple_of)
        if multiple_of == "":
            return None
        common = Number(
            left.integer or right.integer,
            bounds.choose_tighter_bound(left.minimum, right.minimum, max),
            bounds.choose_tighter_bound(left.maximum, right.maximum, min),
            bounds.choose_tighter_bound(left.exclusive_minimum, right.exclusive_minimum, max),
            bounds.choose_tighter_bound(left.exclusive_maximum, right.exclusive_maximum, min),
            multiple_of,
        )
        checked = self._check_satisfiable(bounds.drop_weaker_bounds(common))
        return bounds.collapse_range(checked) if isinstance(checked, Number) else checked

    def _check_satisfiable(self, node: String | Number) -> Node | None:
        if bounds.has_empty_range(node):
            return NOTHING
        verdict = self._checker.check_node(node)
        return NOTHING if verdict == "empty" else None if verdict == "unsupported" else node

    def _intersect_arrays(self, left: Array, right: Array) -> Node | None:
        prefix_items = []
        for index in range(max(len(left.prefix_items), len(right.prefix_items))):
            common = self.intersect(get_item_node(left, index), get_item_node(right, index))
            if common is None:
                return None
            prefix_items.append(common)
        items = self.intersect(left.items, right.items)
        if items is None:
            return None
        contains = self._intersect_contains(left, right, items)
        unique = left.unique or right.unique
        is_special = unique or not isinstance(contains, Anything)
        if (
            contains is None
            or (is_special and prefix_items)
            or (unique and not isinstance(contains, Anything))
        ):
            return None
        min_items = max(left.min_items, right.min_items)
        max_items = bounds.choose_smaller_limit(left.max_items, right.max_items)
        if unique and max_items not in (0, 1):
            items = self._find_distinct_literals(items)
            if items is None:
                return None
        return simplify_array(
            Array(tuple(prefix_items), items, min_items, max_items, contains, unique)
        )

    def _find_distinct_literals(self, node: Node) -> Node | None:
        """Return the few values that a node allows, each of them once, or None."""
        for _ in range(limits.MAX_DEPTH):
            if isinstance(node, SchemaReference):
                node = self._find_definition(node.name) or ANYTHING
        if not isinstance(node, Literals):
            return node if isinstance(node, Nothing) else None
        distinct = {write_canonical_json(json.loads(text)): text for text in node.values}
        return Literals(tuple(distinct.values())) if len(distinct) <= limits.MAX_BITS else None

    def _intersect_contains(self, left: Array, right: Array, items: Node) -> Node | None:
        """Return what some item must be: an item that both arrays allow."""
        required = {left.contains, right.contains} - {ANYTHING}
        if not required:
            return ANYTHING
        return self.intersect(required.pop(), items) if len(required) == 1 else None

    def _intersect_objects(self, left: Object, right: Object) -> Node | None:
        if left.patterns or right.patterns:
            common = intersect_patterns(left, right, self._checker, self.intersect)
        else:
            common = self._intersect_properties(left, right)
        if common is None:
            return None
        most = bounds.choose_smaller_limit(left.max_properties, right.max_properties)
        least = max(left.min_properties, right.min_properties)
        result = simplify_object(replace(common, min_properties=least, max_properties=most))
        return None if has_too_many_to_count(result) else result

    def _intersect_properties(self, left: Object, right: Object) -> Object | None:
        properties = []
        lefts, rights = dict(left.properties), dict(right.properties)
        for name in dict.fromkeys((*lefts, *rights)):
            value = self.intersect(
                lefts.get(name, left.additional), rights.get(name, right.additional)
            )
            if value is None:
                return None
            properties.append((name, value))
        additional = self.intersect(left.additional, right.additional)
        if additional is None:
            return None
        return Object(tuple(properties), left.required | right.required, additional)

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
                return _is_any_true(self.accepts(value, option) for option in node.options)
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
            self._literal_values[node] = {
                write_canonical_json(json.loads(text)) for text in node.values
            }
        return write_canonical_json(value) in self._literal_values[node]

    def _accepts_string(self, value: str, node: String) -> bool | None:
        if not _is_within(len(value), node.min_length, node.max_length):
            return False
        matches = self._checker.pattern_matches
        is_included = node.pattern is None or matches(value, node.pattern)
        is_excluded = _is_any_true(matches(value, pattern) for pattern in node.excluded_patterns)
        return _are_all_true((is_included, None if is_excluded is None else not is_excluded))

    def _accepts_array(self, value: list[Json], node: Array) -> bool | None:
        if not _is_within(len(value), node.min_items, node.max_items):
            return False
        if node.unique and len(set(map(write_canonical_json, value))) < len(value):
            return False
        checks = (
            self.accepts(item, get_item_node(node, index)) for index, item in enumerate(value)
        )
        if isinstance(node.contains, Anything):
            return _are_all_true(checks)
        return _are_all_true(
            (_is_any_true(self.accepts(item, node.contains) for item in value), *checks)
        )

    def _accepts_object(self, value: dict[str, Json], node: Object) -> bool | None:
        if not node.required <= value.keys():
            return False
        if not _is_within(len(value), node.min_properties, node.max_properties):
            return False
        properties = {name: find_property(node, name, self._checker) for name in value}
        return _are_all_true(
            None if (known := properties[name]) is None else self.accepts(item, known)
            for name, item in value.items()
        )


def _is_intended(node: Node, index: int) -> bool:
    return isinstance(node, ImpliedTypes) and index < node.intended_count


def _is_within(length: int, minimum: int, maximum: int | None) -> bool:
    return length >= minimum and (maximum is None or length <= maximum)


def _intersect_llguidance_schema(left: Node, right: Node) -> Node | None:
    return left if left == right else None


def _is_any_true(results: Iterable[bool | None]) -> bool | None:
    """Like `any`, but None if a result is unknown and none is true."""
    is_unknown = False
    for result in results:
        if result:
            return True
        is_unknown = is_unknown or result is None
    return None if is_unknown else False


def _are_all_true(results: Iterable[bool | None]) -> bool | None:
    """Like `all`, but None if a result is unknown and none is false."""
    is_unknown = False
    for result in results:
        if result is False:
            return False
        is_unknown = is_unknown or result is None
    return None if is_unknown else True
