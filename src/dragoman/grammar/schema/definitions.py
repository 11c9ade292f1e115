"""The definitions that a schema refers to, by JSON pointer.

A definition is parsed when something refers to it, from a queue, so that neither the number of
definitions nor their cycles cause deep recursion. One that an intersection needs is parsed at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from dragoman.grammar.schema import limits
from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.nodes import Literals, Node, Object, SchemaReference
from dragoman.grammar.schema.simplify import ALL_TYPES, ANYTHING, NOTHING, union_nodes
from dragoman.output.arguments.schemas.json_pointer import UnresolvedReference, resolve_reference
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
            self._overapproximations[pointer] = _overapproximate(self._targets[pointer])
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


def _overapproximate(schema: Json, *, deep: bool = True) -> Node:
    """Return a node that allows at least what a schema allows.

    It considers only the keywords that distinguish the options of a `oneOf`, such as the values of
    a discriminator. The schema has not been validated yet.
    """
    if not isinstance(schema, dict):
        return NOTHING if schema is False else ANYTHING
    if isinstance(schema.get("enum"), list):
        return Literals(tuple(map(json.dumps, schema["enum"])))
    if "const" in schema:
        return Literals((json.dumps(schema["const"]),))
    types = schema.get("type")
    if types == "object" and deep:
        properties, required = schema.get("properties"), schema.get("required")
        return Object(
            tuple(
                (name, _overapproximate(value, deep=False))
                for name, value in (properties if isinstance(properties, dict) else {}).items()
            ),
            frozenset(
                name
                for name in (required if isinstance(required, list) else [])
                if isinstance(name, str)
            ),
        )
    names = types if isinstance(types, list) else [types]
    return union_nodes(
        ALL_TYPES.get(name, ANYTHING) if isinstance(name, str) else ANYTHING for name in names
    )
