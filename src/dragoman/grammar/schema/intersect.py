"""Puts nodes together: what both of two nodes allow, exactly, and whether that is nothing.

`meet` says None where nodes cannot say it, or where it would take too long. What names no type
counts as it was said, so a choice is told to be exclusive by what its schema says, not by our
reading of it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dragoman.grammar.schema import bounds, limits, simplify
from dragoman.grammar.schema.llguidance_schema import LlguidanceChecker
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
    count_nodes,
    item_node,
    list_options,
    union_nodes,
)
from dragoman.types import Json


class NodeIntersector:
    """Merges the nodes of one schema.

    `known` gives what a name stands for, None where that is still being read; `outline` gives no
    less than what it stands for, at any time.
    """

    def __init__(
        self,
        known: Callable[[str], Node | None],
        outline: Callable[[str], Node],
        judge: LlguidanceChecker,
        budget: limits.SchemaBudget,
    ) -> None:
        self._definition, self._overapproximation, self._checker, self._budget = (
            known,
            outline,
            judge,
            budget,
        )
        self._open_references: set[str] = set()
        self._literal_values: dict[Literals, set[str]] = {}
        self._depth = 0

    def intersect(self, one: Node, other: Node) -> Node | None:
        """What both allow; None where that cannot be said."""
        self._budget.count_steps()
        for left, right in ((one, other), (other, one)):
            if isinstance(left, Anything):
                return right
            if isinstance(left, Nothing):
                return left
        if self._depth >= limits.MAX_DEPTH:
            return None
        self._depth += 1
        try:
            return self._intersect(one, other)
        finally:
            self._depth -= 1

    def _intersect(self, one: Node, other: Node) -> Node | None:
        if isinstance(one, SchemaReference):
            return self._intersect_reference(one, other)
        if isinstance(other, SchemaReference):
            return self._intersect_reference(other, one)
        if isinstance(one, LlguidanceSchema) or isinstance(other, LlguidanceSchema):
            return _intersect_llguidance(one, other)
        if isinstance(one, AnyOf) or isinstance(other, AnyOf):
            return self._intersect_options(one, other)
        if isinstance(one, Literals):
            return self._filter_literals(one, other)
        if isinstance(other, Literals):
            return self._filter_literals(other, one)
        match one, other:
            case String(), String():
                return self._intersect_strings(one, other)
            case Number(), Number():
                return self._intersect_numbers(one, other)
            case Array(), Array():
                return self._intersect_arrays(one, other)
            case Object(), Object():
                return self._intersect_objects(one, other)
        return NOTHING

    def _intersect_reference(self, one: SchemaReference, other: Node) -> Node | None:
        if one == other:
            return one
        if simplify.covers_types_of(other, self._overapproximation(one.name)):
            return one
        found = None if one.name in self._open_references else self._definition(one.name)
        if found is None:
            return None
        self._budget.count_steps(count_nodes(found))
        self._open_references.add(one.name)
        try:
            return self.intersect(found, other)
        finally:
            self._open_references.discard(one.name)

    def _intersect_options(self, one: Node, other: Node) -> Node | None:
        left = one.options if isinstance(one, AnyOf) else (one,)
        right = other.options if isinstance(other, AnyOf) else (other,)
        self._budget.count_steps(count_nodes(one) * len(right) + count_nodes(other) * len(left))
        meant = rest = 0  # of both: how many come first
        if isinstance(one, ImpliedTypes) and isinstance(other, ImpliedTypes):
            meant, rest = one.intended_count, other.intended_count
        kept: list[Node] = []
        spare: list[Node] = []
        for at, mine in enumerate(left):
            for where, theirs in enumerate(right):
                met = self.intersect(mine, theirs)
                if met is None:
                    return None
                soft = meant and at >= meant and where >= rest
                (spare if soft else kept).append(met)
        found, more = list_options(union_nodes(kept)), list_options(union_nodes(spare))
        if len(found) > max(limits.MAX_OPTIONS, len(left), len(right)):
            return None
        if found and more:
            return ImpliedTypes((*found, *more), len(found))
        return union_nodes((*found, *more))

    def _filter_literals(self, one: Literals, other: Node) -> Node | None:
        kept = []
        for text in one.values:
            fit = self.accepts(json.loads(text), other)
            if fit is None:
                return None
            kept += [text] if fit else []
        return Literals(tuple(kept)) if kept else NOTHING

    def _intersect_strings(self, one: String, other: String) -> Node | None:
        patterns = {one.pattern, other.pattern} - {None}
        formats = {one.format, other.format} - {None}
        if len(patterns) > 1 or len(formats) > 1:
            return None
        met = String(
            max(one.min_length, other.min_length),
            bounds.smaller_limit(one.max_length, other.max_length),
            one.pattern or other.pattern,
            one.format or other.format,
        )
        return self._check_node(met)

    def _intersect_numbers(self, one: Number, other: Number) -> Node | None:
        multiple = bounds.common_multiple(one.multiple_of, other.multiple_of)
        if multiple == "":
            return None
        met = Number(
            one.integer or other.integer,
            bounds.tighter_bound(one.minimum, other.minimum, max),
            bounds.tighter_bound(one.maximum, other.maximum, min),
            bounds.tighter_bound(one.exclusive_minimum, other.exclusive_minimum, max),
            bounds.tighter_bound(one.exclusive_maximum, other.exclusive_maximum, min),
            multiple,
        )
        return self._check_node(met)

    def _check_node(self, node: String | Number) -> Node | None:
        if bounds.has_empty_range(node):
            return NOTHING
        said = self._checker.check_node(node)
        return NOTHING if said == "empty" else None if said == "refused" else node

    def _intersect_arrays(self, one: Array, other: Array) -> Node | None:
        first = []
        for index in range(max(len(one.prefix_items), len(other.prefix_items))):
            met = self.intersect(item_node(one, index), item_node(other, index))
            if met is None:
                return None
            first.append(met)
        rest = self.intersect(one.items, other.items)
        if rest is None:
            return None
        least, most = (
            max(one.min_items, other.min_items),
            bounds.smaller_limit(one.max_items, other.max_items),
        )
        return simplify.simplify_array(Array(tuple(first), rest, least, most))

    def _intersect_objects(self, one: Object, other: Object) -> Node | None:
        mine, theirs = dict(one.properties), dict(other.properties)
        members = []
        for name in dict.fromkeys((*mine, *theirs)):
            met = self.intersect(mine.get(name, one.additional), theirs.get(name, other.additional))
            if met is None:
                return None
            members.append((name, met))
        others = self.intersect(one.additional, other.additional)
        if others is None:
            return None
        return simplify.simplify_object(
            Object(tuple(members), one.required | other.required, others)
        )

    # values

    def accepts(self, value: Json, node: Node) -> bool | None:
        """Whether a node allows a value; None where one cannot tell. Formats count for nothing."""
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
                found = self._definition(node.name)
                return None if found is None else self.accepts(value, found)
            case Array():
                return isinstance(value, list) and self._accepts_array(value, node)
            case Object():
                return isinstance(value, dict) and self._accepts_object(value, node)
        return None

    def _accepts_literal(self, value: Json, node: Literals) -> bool:
        if node not in self._literal_values:
            self._budget.count_steps(len(node.values))
            self._literal_values[node] = {
                simplify.canonical_json(json.loads(text)) for text in node.values
            }
        return simplify.canonical_json(value) in self._literal_values[node]

    def _accepts_string(self, value: str, node: String) -> bool | None:
        if len(value) < node.min_length or (
            node.max_length is not None and len(value) > node.max_length
        ):
            return False
        return True if node.pattern is None else self._checker.pattern_matches(value, node.pattern)

    def _accepts_array(self, value: list[Json], node: Array) -> bool | None:
        if len(value) < node.min_items or (
            node.max_items is not None and len(value) > node.max_items
        ):
            return False
        return _all(self.accepts(one, item_node(node, index)) for index, one in enumerate(value))

    def _accepts_object(self, value: dict[str, Json], node: Object) -> bool | None:
        if not node.required <= value.keys():
            return False
        members = dict(node.properties)
        return _all(
            self.accepts(one, members.get(name, node.additional)) for name, one in value.items()
        )

    # choices

    def are_disjoint(self, one: Node, other: Node) -> bool:
        """Whether nothing that is kept of the one is what the other says."""
        self._budget.count_steps()
        if self._depth >= limits.MAX_DEPTH:
            return False
        one = self._overapproximation(one.name) if isinstance(one, SchemaReference) else one
        other = self._overapproximation(other.name) if isinstance(other, SchemaReference) else other
        self._depth += 1
        try:
            return self._are_disjoint(one.intended if isinstance(one, ImpliedTypes) else one, other)
        finally:
            self._depth -= 1

    def are_mutually_exclusive(self, options: Sequence[Node]) -> bool:
        """Whether no value is one of two options."""
        if self._have_discriminator(options):
            return True
        pairs = itertools.permutations(options, 2)
        return all(self.are_disjoint(one, other) for one, other in pairs)

    def _have_discriminator(self, options: Sequence[Node]) -> bool:
        """Whether every option must have some member, with values that are its own."""
        seen = [
            self._overapproximation(one.name) if isinstance(one, SchemaReference) else one
            for one in options
        ]
        objects = [one for one in seen if isinstance(one, Object)]
        if len(objects) < len(options):
            return False
        tables = [dict(one.properties) for one in objects]
        for name in frozenset.intersection(*(one.required for one in objects)):
            tags = [tag for table in tables if isinstance(tag := table.get(name), Literals)]
            if len(tags) == len(tables):
                self._budget.count_steps(sum(len(tag.values) for tag in tags))
                every = [
                    simplify.canonical_json(json.loads(text)) for tag in tags for text in tag.values
                ]
                if len(set(every)) == len(every):
                    return True
        return False

    def _are_disjoint(self, one: Node, other: Node) -> bool:
        if isinstance(one, Nothing) or isinstance(other, Nothing):
            return True
        if isinstance(one, AnyOf):
            return all(self.are_disjoint(option, other) for option in one.options)
        if isinstance(other, AnyOf):
            return all(self.are_disjoint(one, option) for option in other.options)
        if isinstance(one, Literals):
            return all(self.accepts(json.loads(text), other) is False for text in one.values)
        if isinstance(other, Literals):
            return all(self.accepts(json.loads(text), one) is False for text in other.values)
        if isinstance(one, SchemaReference) or isinstance(other, SchemaReference):
            return self.are_disjoint(one, other)
        unclear = Anything | LlguidanceSchema
        if isinstance(one, unclear) or isinstance(other, unclear):
            return False
        match one, other:
            case Object(), Object():
                return self._are_disjoint_objects(one, other)
            case String(), String():
                # a format is enforced here, but does not count for JSON schema
                bare = replace(one, format=None), replace(other, format=None)
                return isinstance(self.intersect(*bare), Nothing)
            case Number(), Number():
                return isinstance(
                    self.intersect(
                        bounds.drop_rounded_bounds(one), bounds.drop_rounded_bounds(other)
                    ),
                    Nothing,
                )
        return type(one) is not type(other)

    def _are_disjoint_objects(self, one: Object, other: Object) -> bool:
        mine, theirs = dict(one.properties), dict(other.properties)
        names = sorted(one.required | other.required)
        # those that tell options apart are mostly of few values
        names.sort(key=lambda name: not isinstance(mine.get(name), Literals))
        return any(
            self.are_disjoint(mine.get(name, one.additional), theirs.get(name, other.additional))
            for name in names
        )


def _intersect_llguidance(one: Node, other: Node) -> Node | None:
    for left, right in ((one, other), (other, one)):
        if isinstance(left, LlguidanceSchema) and (
            left == right or (left.object_node and right == Object())
        ):
            return left
    return None


def _any(found: Iterable[bool | None]) -> bool | None:
    unclear = False
    for one in found:
        if one:
            return True
        unclear = unclear or one is None
    return None if unclear else False


def _all(found: Iterable[bool | None]) -> bool | None:
    unclear = False
    for one in found:
        if one is False:
            return False
        unclear = unclear or one is None
    return None if unclear else True
