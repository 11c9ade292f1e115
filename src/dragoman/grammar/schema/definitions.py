"""The definitions that a schema refers to, by JSON pointer.

A definition is parsed when something refers to it, from a queue, so that neither the number of
definitions nor their cycles cause deep recursion. One that an intersection needs is parsed at once.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.grammar.schema import limits
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.nodes import Node, SchemaReference
from dragoman.grammar.schema.overapproximate import overapproximate_schema
from dragoman.output.arguments.json_pointer import UnresolvedReference, resolve_reference
from dragoman.types import Json


class SchemaDefinitions:
    """Parses the definitions of one schema; the whole schema is the definition of `""`."""

    def __init__(
        self,
        schema: Json,
        parse: Callable[[Json, str], Node],
        budget: limits.SchemaBudget,
        diagnostics: SchemaDiagnostics,
    ) -> None:
        self._root = schema
        self._parse = parse
        self._budget = budget
        self._diagnostics = diagnostics
        self._targets: dict[str, Json] = {"": schema}
        self._nodes: dict[str, Node | None] = {}  # None while it is being parsed
        self._overapproximations: dict[str, Node] = {}
        self._queue: list[str] = [""]

    def parse_all(self) -> dict[str, Node]:
        while self._queue:
            self.find(self._queue.pop())
        return {pointer: node for pointer, node in self._nodes.items() if node is not None}

    def find(self, pointer: str) -> Node | None:
        """Return the node of a definition, or None while it is being parsed."""
        if pointer not in self._nodes:
            self._nodes[pointer] = None
            self._nodes[pointer] = self._parse(self._targets[pointer], pointer)
        return self._nodes[pointer]

    def overapproximate(self, pointer: str) -> Node:
        """Return a node that allows at least what a definition allows, even while it is parsed."""
        node = self.find(pointer)
        if node is not None:
            return node
        if pointer not in self._overapproximations:
            self._overapproximations[pointer] = overapproximate_schema(self._targets[pointer])
        return self._overapproximations[pointer]

    def parse_reference(self, reference: str, place: str) -> SchemaReference:
        pointer, target = self._resolve(reference, place)
        seen = {pointer}
        while isinstance(target, dict) and isinstance(target.get("$ref"), str):
            next_pointer, target = self._resolve(target["$ref"], place)
            if next_pointer in seen:
                self._diagnostics.fail(place, "refers only to itself")
            if len(seen) >= limits.MAX_DEPTH:
                self._budget.reject(f"a chain of more than {limits.MAX_DEPTH} references")
            seen.add(next_pointer)
        if pointer not in self._nodes:
            self._queue.append(pointer)
        return SchemaReference(pointer)

    def resolve_and_parse(self, reference: str, place: str) -> tuple[str, Json]:
        """Return the pointer and the schema of a reference, after parsing it."""
        pointer, target = self._resolve(reference, place)
        self.find(pointer)
        return pointer, target

    def _resolve(self, reference: str, place: str) -> tuple[str, Json]:
        try:
            pointer, target = resolve_reference(self._root, reference)
        except UnresolvedReference as error:
            self._diagnostics.fail(place, str(error))
        self._targets[pointer] = target
        return pointer, target
