"""Subtracts nodes: what one node allows and another does not, and whether they are disjoint.

`not`, `oneOf` and `if` need it: a value matches `oneOf` if it matches one option and not the
others. The results are exact, or None where nodes cannot express them. The difference of two
objects or arrays is a union: for each constraint of the second, the values of the first that
violate it. As in `intersect`, a schema without `type` counts as written.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dragoman.grammar.regex.escape import escape_regex
from dragoman.grammar.schema import limits
from dragoman.grammar.schema.algebra import bounds
from dragoman.grammar.schema.algebra.intersect import NodeIntersector
from dragoman.grammar.schema.algebra.pattern_properties import find_property
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
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
    ALL_TYPES,
    ANYTHING,
    NOTHING,
    ImpliedTypes,
    list_options,
    literal_to_node,
    union_nodes,
    write_canonical_json,
)
from dragoman.types import Json

MAX_NUMBERS = 16  # single numbers that are cut out of a range


class Inexpressible(Exception):
    """Nodes cannot express a difference."""


class NodeDifference:
    """Subtracts and compares the nodes of one schema."""

    def __init__(
        self,
        intersector: NodeIntersector,
        find_definition: Callable[[str], Node | None],
        overapproximate: Callable[[str], Node],
        checker: LlguidanceChecker,
        budget: limits.SchemaBudget,
        diagnostics: SchemaDiagnostics,
    ) -> None:
        self._intersector = intersector
        self._find_definition = find_definition
        self._overapproximate = overapproximate
        self._checker = checker
        self._budget = budget
        self._diagnostics = diagnostics
        self._open_references: set[str] = set()
        self._depth = 0

    # difference

    def subtract(self, left: Node, right: Node) -> Node | None:
        """Return what `left` allows and `right` does not, or None if nodes cannot express it."""
        if self._diagnostics.ignores_exclusions:
            return None
        try:
            return self._subtract(left, right)
        except Inexpressible:
            return None

    def choose_one(self, options: Sequence[Node]) -> Node | None:
        """Return what just one of the options allows, or None if nodes cannot express it."""
        if len(options) > limits.MAX_OPTIONS:
            return None
        exclusive: list[Node] = []
        for index, option in enumerate(options):
            rest: Node | None = option
            for other in (*options[:index], *options[index + 1 :]):
                rest = None if rest is None else self.subtract(rest, other)
            if rest is None:
                return None
            exclusive.append(rest)
        return union_nodes(exclusive)

    def _subtract(self, left: Node, right: Node) -> Node:
        self._budget.count_steps()
        if isinstance(right, Anything) or isinstance(left, Nothing) or left == right:
            return NOTHING
        if isinstance(right, Nothing):
            return left
        if self._depth >= limits.MAX_DEPTH:
            raise Inexpressible
        self._depth += 1
        try:
            return self._subtract_options(left, right)
        finally:
            self._depth -= 1

    def _subtract_options(self, left: Node, right: Node) -> Node:
        for node in (left, right):
            if isinstance(node, SchemaReference):
                return self._subtract_reference(node, left, right)
        if isinstance(left, Anything):
            left = union_nodes(ALL_TYPES.values())
        if isinstance(right, AnyOf):
            for option in right.options:
                left = self._subtract(left, option)
            return left
        if isinstance(left, ImpliedTypes):
            intended = self._subtract_each(left.options[: left.intended_count], right)
            rest = self._subtract_each(left.options[left.intended_count :], right)
            count = len(list_options(intended))
            options = (*list_options(intended), *list_options(rest))
            return replace(left, options=options, intended_count=count) if count else rest
        if isinstance(left, AnyOf):
            return self._subtract_each(left.options, right)
        return self._subtract_single(left, right)

    def _subtract_each(self, options: Iterable[Node], right: Node) -> Node:
        result = union_nodes([self._subtract(option, right) for option in options])
        if len(list_options(result)) > limits.MAX_OPTIONS:
            raise Inexpressible
        return result

    def _subtract_reference(self, node: SchemaReference, left: Node, right: Node) -> Node:
        """Subtract with a definition in place of a reference; a recursive one is inexpressible."""
        definition = self._find_definition(node.name)
        is_open = node.name in self._open_references
        if (
            definition is None
            or is_open
            or (node is right and not self._diagnostics.is_enforced(node.name))
        ):
            raise Inexpressible
        self._open_references.add(node.name)
        try:
            if left == node:
                rest = self._subtract(definition, right)
                return node if rest == definition else rest
            return self._subtract(left, definition)
        finally:
            self._open_references.discard(node.name)

    def _subtract_single(self, left: Node, right: Node) -> Node:
        if isinstance(left, LlguidanceSchema) or isinstance(right, LlguidanceSchema):
            raise Inexpressible
        if isinstance(left, Literals):
            return self._subtract_from_literals(left, right)
        if isinstance(right, Literals):
            return self._subtract_literals(left, right)
        if type(left) is not type(right):
            return left
        violations = self._list_violations(left, right)
        result = union_nodes([self._intersect(left, violation) for violation in violations])
        if len(list_options(result)) > limits.MAX_OPTIONS:
            raise Inexpressible
        return result

    def _intersect(self, left: Node, right: Node) -> Node:
        common = self._intersector.intersect(left, right)
        if common is None:
            raise Inexpressible
        return common

    def _complement(self, node: Node) -> Node:
        return self._subtract(ANYTHING, node)

    def _subtract_from_literals(self, left: Literals, right: Node) -> Node:
        kept = []
        for text in left.values:
            is_accepted = self._intersector.accepts(json.loads(text), right)
            if is_accepted is None or _has_format(right):
                raise Inexpressible
            kept += [] if is_accepted else [text]
        return Literals(tuple(kept)) if kept else NOTHING

    def _subtract_literals(self, left: Node, literals: Literals) -> Node:
        """Cut single values out of a string, number, array or object."""
        values: list[Json] = [json.loads(text) for text in literals.values]
        if isinstance(left, String):
            texts = sorted({value for value in values if isinstance(value, str)})
            if not texts:
                return left
            pattern = f"^(?:{'|'.join(map(escape_regex, texts))})$"
            return self._intersect(left, String(excluded_patterns=(pattern,)))
        if isinstance(left, Number):
            return self._cut_numbers(left, values)
        for value in values:
            if isinstance(value, list | dict):
                left = self._subtract(left, literal_to_node(json.dumps(value)))
        return left

    def _cut_numbers(self, left: Number, values: Iterable[Json]) -> Node:
        numbers = sorted({value for value in values if bounds.number_matches(value, left)})
        if len(numbers) > MAX_NUMBERS:
            raise Inexpressible
        texts = [json.dumps(number) for number in numbers]
        ranges = zip([None, *texts], [*texts, None], strict=True)
        return union_nodes(
            [
                self._intersect(left, Number(exclusive_minimum=low, exclusive_maximum=high))
                for low, high in ranges
            ]
        )

    def _list_violations(self, left: Node, right: Node) -> Iterator[Node]:
        """List nodes for the values of one type that violate a constraint of `right`."""
        match left, right:
            case String(), String():
                yield from _list_string_violations(right)
            case Number(), Number():
                yield from _list_number_violations(left, right)
            case Array(), Array():
                yield from self._list_array_violations(right)
            case Object(), Object():
                yield from self._list_object_violations(left, right)

    def _list_array_violations(self, right: Array) -> Iterator[Node]:
        if right.unique:
            raise Inexpressible
        if right.min_items:
            yield Array(max_items=right.min_items - 1)
        if right.max_items is not None:
            yield Array(min_items=right.max_items + 1)
        if not isinstance(right.contains, Anything):
            yield Array(items=self._complement(right.contains))
        for index, item in enumerate(right.prefix_items):
            if not isinstance(item, Anything):
                prefix = (*[ANYTHING] * index, self._complement(item))
                yield Array(prefix, min_items=index + 1)
        if isinstance(right.items, Nothing):
            yield Array(min_items=len(right.prefix_items) + 1)
        elif not isinstance(right.items, Anything):
            if right.prefix_items:
                raise Inexpressible
            yield Array(contains=self._complement(right.items))

    def _list_object_violations(self, left: Object, right: Object) -> Iterator[Node]:
        for name in sorted(right.required):
            yield Object(((name, NOTHING),))
        if right.min_properties:
            yield Object(max_properties=right.min_properties - 1)
        if right.max_properties is not None:
            yield Object(min_properties=right.max_properties + 1)
        for name, value in right.properties:
            if not isinstance(value, Anything):
                yield Object(((name, self._complement(value)),), frozenset({name}))
        others = (right.additional, *(value for _, value in right.pattern_properties))
        if not right.patterns and all(isinstance(value, Anything) for value in others):
            return
        if left.pattern_properties or not isinstance(left.additional, Nothing):
            raise Inexpressible  # some property that is not listed would have to exist
        for name in left.names:
            allowed: Node | None = ANYTHING
            if name not in right.names:
                allowed = find_property(right, name, self._checker)
            if allowed is None:
                raise Inexpressible
            if not isinstance(allowed, Anything):
                yield Object(((name, self._complement(allowed)),), frozenset({name}))

    # disjointness

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
                values = [
                    write_canonical_json(json.loads(text)) for tag in tags for text in tag.values
                ]
                if len(set(values)) == len(values):
                    return True
        return False

    def _resolve(self, node: Node) -> Node:
        return self._overapproximate(node.name) if isinstance(node, SchemaReference) else node

    def are_disjoint(self, left: Node, right: Node) -> bool:
        """Whether it is certain that no value matches both nodes.

        Of the types that `left` implies, only the intended count if only they remain.
        """
        self._budget.count_steps()
        if self._depth >= limits.MAX_DEPTH:
            return False
        left, right = self._resolve(left), self._resolve(right)
        self._depth += 1
        try:
            if isinstance(left, ImpliedTypes) and not self._diagnostics.keeps_all_types:
                left = left.intended
            return self._are_disjoint(left, right)
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
            return all(
                self._intersector.accepts(json.loads(text), right) is False for text in left.values
            )
        if isinstance(right, Literals):
            return all(
                self._intersector.accepts(json.loads(text), left) is False for text in right.values
            )
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
                return isinstance(self._intersector.intersect(left, right), Nothing)
            case Number(), Number():
                return isinstance(self._intersector.intersect(left, right), Nothing)
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


def _has_format(node: Node) -> bool:
    """Whether a node has a format, which for JSON Schema is an annotation."""
    return any(isinstance(option, String) and option.format for option in list_options(node))


def _list_string_violations(node: String) -> Iterator[Node]:
    if node.format is not None:
        raise Inexpressible
    if node.min_length:
        yield String(max_length=node.min_length - 1)
    if node.max_length is not None:
        yield String(min_length=node.max_length + 1)
    if node.pattern is not None:
        yield String(excluded_patterns=(node.pattern,))
    for pattern in node.excluded_patterns:
        yield String(pattern=pattern)


def _list_number_violations(left: Number, right: Number) -> Iterator[Node]:
    if right.multiple_of not in (None, left.multiple_of) or (right.integer and not left.integer):
        raise Inexpressible
    if right.minimum is not None:
        yield Number(exclusive_maximum=right.minimum)
    if right.exclusive_minimum is not None:
        yield Number(maximum=right.exclusive_minimum)
    if right.maximum is not None:
        yield Number(exclusive_minimum=right.maximum)
    if right.exclusive_maximum is not None:
        yield Number(minimum=right.exclusive_maximum)
