"""The last look at what was read: what cannot be goes away, and names stay where they are needed.

A definition that no finite value fits is nothing, and so is what needs it. One that leads to itself
without a value in between means nothing at all. Small ones, and those with one use, are put in the
place of their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dragoman.grammar.schema.nodes import (
    AnyOf,
    Array,
    LlguidanceSchema,
    Node,
    Nothing,
    Object,
    SchemaReference,
)
from dragoman.grammar.schema.simplify import (
    NOTHING,
    ImpliedTypes,
    child_nodes,
    count_nodes,
    item_node,
    simplify_array,
    simplify_object,
    union_nodes,
)

MAX_INLINED_NODES, MAX_INLINED_DEPTH = (
    8,
    16,
)  # nodes of a definition that has no name of its own, and levels of them
MAX_ROUNDS = 64  # of finding out which definitions allow a value


class CircularReference(Exception):
    """A definition that refers only to itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class TooManyReferences(Exception):
    """Definitions that refer to each other in too many ways."""


def normalize_definitions(
    root: Node, known: Mapping[str, Node]
) -> tuple[Node, tuple[tuple[str, Node], ...]]:
    """The root and the definitions that it needs."""
    order = _order_dependencies_first(root, known)
    _reject_circular_references(order, known)
    alive = _find_satisfiable(order, known)
    uses = Counter(_referenced_names([root, *(known[name] for name in order)]))
    tidy = _DefinitionRewriter({name for name in order if name not in alive})
    for name in order:
        node = tidy.rewritten[name] = tidy.rewrite(known[name])
        if name in alive and not any(True for _ in _referenced_names([node])):
            small = count_nodes(node, MAX_INLINED_NODES) <= MAX_INLINED_NODES
            if small or (uses[name] == 1 and _is_shallow(node)):
                tidy.inlined[name] = node
    found = tidy.rewrite(root)
    while isinstance(found, SchemaReference):
        found = tidy.rewritten[found.name]
    needed = _order_dependencies_first(found, tidy.rewritten)
    return found, tuple((name, tidy.rewritten[name]) for name in reversed(needed))


def _referenced_names(nodes: list[Node]) -> Iterator[str]:
    """The names in some nodes, as often as they are there."""
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, SchemaReference):
            yield node.name
        waiting += reversed(child_nodes(node))


def _order_dependencies_first(root: Node, known: Mapping[str, Node]) -> list[str]:
    """The names that are needed, those first that the others are made of."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    path = [("", _referenced_names([root]))]
    while path:
        name = next(path[-1][1], None)
        if name is None:
            found[path.pop()[0]] = None
        elif name not in seen:
            seen.add(name)
            path.append((f"#{name}", _referenced_names([known[name]])))
    return [name[1:] for name in found if name]


def _unguarded_references(node: Node) -> list[str]:
    """The names that a node may stand for, with no value around them."""
    found, waiting = [], [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, SchemaReference):
            found.append(one.name)
        elif isinstance(one, AnyOf):
            waiting += child_nodes(one)
    return found


def _reject_circular_references(order: list[str], known: Mapping[str, Node]) -> None:
    done: set[str] = set()
    for start in order:
        path = {} if start in done else {start: iter(_unguarded_references(known[start]))}
        while path:
            last = next(reversed(path))
            name = next(path[last], None)
            if name is None:
                done.add(last)
                del path[last]
            elif name in path:
                raise CircularReference(name)
            elif name not in done:
                path[name] = iter(_unguarded_references(known[name]))


def _find_satisfiable(order: list[str], known: Mapping[str, Node]) -> set[str]:
    """The names of definitions that some value fits."""
    found: set[str] = set()
    for _ in range(MAX_ROUNDS):
        before = len(found)
        for name in order:
            if name not in found and _is_satisfiable(known[name], found):
                found.add(name)
        if len(found) == before:
            return found
    raise TooManyReferences


def _is_satisfiable(node: Node, alive: set[str]) -> bool:
    match node:
        case Nothing():
            return False
        case SchemaReference():
            return node.name in alive
        case AnyOf():
            return any(_is_satisfiable(option, alive) for option in child_nodes(node))
        case Array():
            needed = min(node.min_items, len(node.prefix_items) + 1)
            return all(_is_satisfiable(item_node(node, index), alive) for index in range(needed))
        case Object():
            members = dict(node.properties)
            return all(
                _is_satisfiable(members.get(name, node.additional), alive) for name in node.required
            )
        case LlguidanceSchema() if node.object_node is not None:
            return _is_satisfiable(node.object_node, alive)
    return True


def _is_shallow(node: Node) -> bool:
    level = [node]
    for _ in range(MAX_INLINED_DEPTH):
        level = [inner for one in level for inner in child_nodes(one)]
        if not level:
            return True
    return False


@dataclass
class _DefinitionRewriter:
    """Rebuilds nodes. `dead` are the names that stand for nothing."""

    unsatisfiable: set[str]
    inlined: dict[str, Node] = field(default_factory=dict)
    rewritten: dict[str, Node] = field(default_factory=dict)

    def rewrite(self, node: Node) -> Node:
        match node:
            case SchemaReference():
                return (
                    NOTHING
                    if node.name in self.unsatisfiable
                    else self.inlined.get(node.name, node)
                )
            case ImpliedTypes():
                return self.rewrite(node.intended)
            case AnyOf():
                return union_nodes([self.rewrite(option) for option in node.options])
            case Array():
                first = tuple([self.rewrite(one) for one in node.prefix_items])
                return simplify_array(
                    replace(node, prefix_items=first, items=self.rewrite(node.items))
                )
            case Object():
                return self._rewrite_object(node)
            case LlguidanceSchema() if node.object_node is not None:
                own = self._rewrite_object(node.object_node)
                return replace(node, object_node=own) if isinstance(own, Object) else own
        return node

    def _rewrite_object(self, node: Object) -> Node:
        others = self.rewrite(node.additional)
        members = [(name, self.rewrite(inner)) for name, inner in node.properties]
        members += [(name, others) for name in sorted(node.required - set(node.names))]
        keyed = [(keys, self.rewrite(inner)) for keys, inner in node.pattern_properties]
        found = replace(
            node, properties=tuple(members), additional=others, pattern_properties=tuple(keyed)
        )
        return simplify_object(found)
