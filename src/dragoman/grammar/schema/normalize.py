"""Normalizes the definitions of a parsed schema.

A definition that no finite value matches becomes `Nothing`, and so does what requires it. One that
refers to itself with no value in between is meaningless and rejected. Small definitions, and those
that are used once, are inlined.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dragoman.grammar.schema.diagnostics import SchemaDiagnostics
from dragoman.grammar.schema.limits import MAX_BITS
from dragoman.grammar.schema.nodes import (
    AnyOf,
    Array,
    LlguidanceSchema,
    Node,
    Nothing,
    Object,
    SchemaReference,
    String,
)
from dragoman.grammar.schema.simplify import (
    NOTHING,
    ImpliedTypes,
    count_nodes,
    get_child_nodes,
    get_item_node,
    get_node_types,
    needs_json,
    simplify_array,
    simplify_object,
    union_nodes,
)

_JSON_TYPES = {
    String: json.dumps({"type": ["string"]}),
    Array: json.dumps({"type": ["array"]}),
    Object: json.dumps({"type": ["object"]}),
}
MAX_INLINED_NODES = 8  # of a definition with several uses
MAX_INLINED_DEPTH = 16  # of a definition with one use
MAX_ROUNDS = 64  # of finding the satisfiable definitions


class CircularReference(Exception):
    """A definition refers only to itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class TooManyReferences(Exception):
    """The definitions refer to each other in too many ways."""


def normalize_definitions(
    root: Node, definitions: Mapping[str, Node], diagnostics: SchemaDiagnostics
) -> tuple[Node, tuple[tuple[str, Node], ...]]:
    """Return the root and the definitions that it still refers to."""
    names = _order_dependencies_first(root, definitions)
    _reject_circular_references(names, definitions)
    satisfiable = _find_satisfiable(names, definitions)
    uses = Counter(_iterate_referenced_names([root, *(definitions[name] for name in names)]))
    rewriter = _DefinitionRewriter(set(names) - satisfiable, diagnostics)
    for name in names:
        node = rewriter.rewritten[name] = rewriter.rewrite(definitions[name])
        if name in satisfiable and not any(True for _ in _iterate_referenced_names([node])):
            is_small = count_nodes(node, MAX_INLINED_NODES) <= MAX_INLINED_NODES
            if is_small or (uses[name] == 1 and _is_shallow(node)):
                rewriter.inlined[name] = node
    new_root = rewriter.rewrite(root)
    while isinstance(new_root, SchemaReference):
        new_root = rewriter.rewritten[new_root.name]
    needed = _order_dependencies_first(new_root, rewriter.rewritten)
    return new_root, tuple((name, rewriter.rewritten[name]) for name in reversed(needed))


def _iterate_referenced_names(nodes: list[Node]) -> Iterator[str]:
    """Yield the name of every reference in some nodes, in order and with repetitions."""
    stack = nodes[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, SchemaReference):
            yield node.name
        stack += reversed(get_child_nodes(node))


def _order_dependencies_first(root: Node, definitions: Mapping[str, Node]) -> list[str]:
    """Return the names that a node needs, in postorder."""
    ordered: list[str] = []
    seen: set[str] = set()
    path: list[tuple[str | None, Iterator[str]]] = [(None, _iterate_referenced_names([root]))]
    while path:
        current, references = path[-1]
        name = next(references, None)
        if name is None:
            path.pop()
            ordered += [] if current is None else [current]
        elif name not in seen:
            seen.add(name)
            path.append((name, _iterate_referenced_names([definitions[name]])))
    return ordered


def _find_unguarded_references(node: Node) -> list[str]:
    """Return the names that a node may stand for, with no array or object around them."""
    names, stack = [], [node]
    while stack:
        current = stack.pop()
        if isinstance(current, SchemaReference):
            names.append(current.name)
        elif isinstance(current, AnyOf):
            stack += get_child_nodes(current)
    return names


def _reject_circular_references(names: list[str], definitions: Mapping[str, Node]) -> None:
    done: set[str] = set()
    for start in names:
        path = (
            {} if start in done else {start: iter(_find_unguarded_references(definitions[start]))}
        )
        while path:
            last = next(reversed(path))
            name = next(path[last], None)
            if name is None:
                done.add(last)
                del path[last]
            elif name in path:
                raise CircularReference(name)
            elif name not in done:
                path[name] = iter(_find_unguarded_references(definitions[name]))


def _find_satisfiable(names: list[str], definitions: Mapping[str, Node]) -> set[str]:
    """Return the names of the definitions that some finite value matches: a least fixed point."""
    satisfiable: set[str] = set()
    for _ in range(MAX_ROUNDS):
        count = len(satisfiable)
        for name in names:
            if name not in satisfiable and _is_satisfiable(definitions[name], satisfiable):
                satisfiable.add(name)
        if len(satisfiable) == count:
            return satisfiable
    raise TooManyReferences


def _is_satisfiable(node: Node, satisfiable: set[str]) -> bool:
    match node:
        case Nothing():
            return False
        case SchemaReference():
            return node.name in satisfiable
        case AnyOf():
            return any(_is_satisfiable(option, satisfiable) for option in get_child_nodes(node))
        case Array():
            count = min(node.min_items, len(node.prefix_items) + 1)
            items = [get_item_node(node, index) for index in range(count)]
            return all(_is_satisfiable(item, satisfiable) for item in (*items, node.contains))
        case Object():
            properties = dict(node.properties)
            values = [properties.get(name, node.additional) for name in node.required]
            is_possible = all(_is_satisfiable(value, satisfiable) for value in values)
            if node.min_properties <= len(node.required):
                return is_possible
            return is_possible and any(
                _is_satisfiable(value, satisfiable) for value in get_child_nodes(node)
            )
    return True


def _mark_json_only(node: Node) -> Node:
    """Mark a node whose constraints only a writer of JSON can enforce."""
    if not isinstance(node, String | Array | Object) or not needs_json(node):
        return node
    return LlguidanceSchema(_JSON_TYPES[type(node)], node)


def _is_shallow(node: Node) -> bool:
    level = [node]
    for _ in range(MAX_INLINED_DEPTH):
        level = [child for parent in level for child in get_child_nodes(parent)]
        if not level:
            return True
    return False


@dataclass
class _DefinitionRewriter:
    """Rebuilds nodes without references to `unsatisfiable` and `inlined` definitions."""

    unsatisfiable: set[str]
    diagnostics: SchemaDiagnostics
    inlined: dict[str, Node] = field(default_factory=dict)
    rewritten: dict[str, Node] = field(default_factory=dict)

    def rewrite(self, node: Node) -> Node:
        match node:
            case SchemaReference() if node.name in self.unsatisfiable:
                return NOTHING
            case SchemaReference():
                return self.inlined.get(node.name, node)
            case ImpliedTypes() if not self.diagnostics.keeps_all_types:
                types = get_node_types(node.intended) or ["the type that its keywords are about"]
                self.diagnostics.warn_about_types(node.place, types)
                return self.rewrite(node.intended)
            case AnyOf():
                return union_nodes([self.rewrite(option) for option in node.options])
            case Array():
                prefix_items = tuple([self.rewrite(item) for item in node.prefix_items])
                items, contains = self.rewrite(node.items), self.rewrite(node.contains)
                return _mark_json_only(
                    simplify_array(
                        replace(node, prefix_items=prefix_items, items=items, contains=contains)
                    )
                )
            case Object():
                return _mark_json_only(self._rewrite_object(node))
        return _mark_json_only(node)

    def _rewrite_object(self, node: Object) -> Node:
        additional = self.rewrite(node.additional)
        properties = [(name, self.rewrite(value)) for name, value in node.properties]
        properties += [(name, additional) for name in sorted(node.required - set(node.names))]
        by_pattern = [(keys, self.rewrite(value)) for keys, value in node.pattern_properties]
        if sum(not isinstance(value, Nothing) for _, value in properties) > MAX_BITS:
            self.diagnostics.warn_about_order(MAX_BITS)
        rewritten = replace(
            node,
            properties=tuple(properties),
            additional=additional,
            pattern_properties=tuple(by_pattern),
        )
        return simplify_object(rewritten)
