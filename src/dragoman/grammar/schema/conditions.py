"""Conditions: `not`, `if` with `then` and `else`, and the keywords about dependencies.

A dependency is a part of the schema like any other: either the property is absent, or what depends
on it holds. `not` and `if` are applied after all parts are intersected, because what is left when a
schema is subtracted is easier to express the less there was before. For the same reason, an
element of `allOf` that is only a condition is applied as if it were a keyword of the schema itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dragoman.grammar.schema import keywords
from dragoman.grammar.schema.algebra.difference import NodeDifference
from dragoman.grammar.schema.algebra.intersect import NodeIntersector
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.nodes import Node, Object
from dragoman.grammar.schema.simplify import ALL_TYPES, ANYTHING, NOTHING, union_nodes
from dragoman.output.arguments.schemas.json_pointer import escape_token
from dragoman.types import Json

DEPENDENCY_KEYWORDS = ("dependencies", "dependentRequired", "dependentSchemas")
NO_OBJECT = union_nodes(node for name, node in ALL_TYPES.items() if name != "object")


class ConditionParser:
    """Parses the conditions of schemas; `parse` parses a schema at a place."""

    def __init__(
        self,
        parse: Callable[[Json, str], Node],
        intersector: NodeIntersector,
        difference: NodeDifference,
        diagnostics: SchemaDiagnostics,
    ) -> None:
        self._parse = parse
        self._intersector = intersector
        self._difference = difference
        self._diagnostics = diagnostics

    def parse_dependencies(
        self, schema: dict[str, Json], place: str
    ) -> Iterator[tuple[str, Node | None]]:
        """Yield a part for each dependency, with its place; None if nodes cannot express it."""
        for keyword in DEPENDENCY_KEYWORDS:
            for name, needed in schema.get(keyword, {}).items():
                part_place = f"{place}/{keyword}/{escape_token(name)}"
                yield part_place, self._parse_dependency(name, needed, part_place)

    def _parse_dependency(self, name: str, needed: Json, place: str) -> Node | None:
        absent = Object(((name, NOTHING),))
        if isinstance(needed, str):  # of draft 3
            needed = [needed]
        if not isinstance(needed, list):
            present = Object(required=frozenset({name}))
            common = self._intersector.intersect(present, self._parse(needed, place))
            return None if common is None else union_nodes([absent, common, NO_OBJECT])
        if not all(isinstance(other, str) for other in needed):
            self._diagnostics.fail(place, "must be a list of strings or a schema")
        return union_nodes([absent, Object(required=frozenset({name, *needed})), NO_OBJECT])

    def apply(self, node: Node, schema: dict[str, Json], place: str) -> Node:
        """Apply `not` and `if` to what all other keywords of a schema allow."""
        conditions = [(schema, place)] + [
            (part, f"{place}/allOf/{index}")
            for index, part in enumerate(schema.get("allOf", ()))
            if keywords.is_conditional(part)
        ]
        for condition, part_place in conditions:
            for keyword, apply in (("not", self._apply_not), ("if", self._apply_if)):
                if keyword in condition and keywords.restricts(keyword, condition, {}):
                    result = apply(node, condition, part_place)
                    if result is None:
                        self._diagnostics.report_unenforced(f"{part_place}/{keyword}")
                    else:
                        node = result
        return node

    def _apply_not(self, node: Node, schema: dict[str, Json], place: str) -> Node | None:
        negated, place = schema["not"], f"{place}/not"
        if isinstance(negated, dict) and keywords.is_conditional(negated) and "not" in negated:
            # `{"not": {"not": ...}}`; with an additional `if`, it is not supported
            inner = self._parse(negated["not"], f"{place}/not")
            return None if "if" in negated else self._intersector.intersect(node, inner)
        excluded = self._parse(negated, place)
        return self._difference.subtract(node, excluded) if self._is_exact(place) else None

    def _is_exact(self, place: str) -> bool:
        """Whether a schema is enforced completely: else more would be subtracted than it allows."""
        return self._diagnostics.is_enforced(place)

    def _apply_if(self, node: Node, schema: dict[str, Json], place: str) -> Node | None:
        condition = self._parse(schema["if"], f"{place}/if")
        branches = [
            self._parse(schema[keyword], f"{place}/{keyword}") if keyword in schema else ANYTHING
            for keyword in ("then", "else")
        ]
        if not self._is_exact(f"{place}/if"):
            return None
        matching = self._intersector.intersect(node, condition)
        others = self._difference.subtract(node, condition)
        if matching is None or others is None:
            return None
        results = [
            self._intersector.intersect(part, branch)
            for part, branch in zip((matching, others), branches, strict=True)
        ]
        return None if None in results else union_nodes(part for part in results if part)
