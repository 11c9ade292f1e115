"""The last look at what was read: what cannot be goes away, and names stay where they are needed.

A definition that no finite value fits is nothing, and so is what needs it. One that leads to itself
without a value in between means nothing at all. Small ones, and those with one use, are put in the
place of their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from dragoman.grammar.schema.nodes import Array, Either, Foreign, Named, Node, Nothing, Object
from dragoman.grammar.schema.simplify import (
    NOTHING,
    Implied,
    array,
    either,
    inside,
    item,
    object_,
    size,
)

SMALL, DEEP = 8, 16  # nodes of a definition that has no name of its own, and levels of them
ROUNDS = 64  # of finding out which definitions allow a value


class Endless(Exception):
    """A definition that refers only to itself."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Knotted(Exception):
    """Definitions that refer to each other in too many ways."""


def settled(root: Node, known: Mapping[str, Node]) -> tuple[Node, tuple[tuple[str, Node], ...]]:
    """The root and the definitions that it needs."""
    order = _order(root, known)
    _refuse_circles(order, known)
    alive = _alive(order, known)
    uses = Counter(_names([root, *(known[name] for name in order)]))
    tidy = _Tidy({name for name in order if name not in alive})
    for name in order:
        node = tidy.done[name] = tidy.of(known[name])
        if name in alive and not any(True for _ in _names([node])):
            small = size(node, SMALL) <= SMALL
            if small or (uses[name] == 1 and _shallow(node)):
                tidy.inlined[name] = node
    found = tidy.of(root)
    while isinstance(found, Named):
        found = tidy.done[found.name]
    needed = _order(found, tidy.done)
    return found, tuple((name, tidy.done[name]) for name in reversed(needed))


def _names(nodes: list[Node]) -> Iterator[str]:
    """The names in some nodes, as often as they are there."""
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Named):
            yield node.name
        waiting += reversed(inside(node))


def _order(root: Node, known: Mapping[str, Node]) -> list[str]:
    """The names that are needed, those first that the others are made of."""
    found: dict[str, None] = {}
    seen: set[str] = set()
    path = [("", _names([root]))]
    while path:
        name = next(path[-1][1], None)
        if name is None:
            found[path.pop()[0]] = None
        elif name not in seen:
            seen.add(name)
            path.append((f"#{name}", _names([known[name]])))
    return [name[1:] for name in found if name]


def _bare(node: Node) -> list[str]:
    """The names that a node may stand for, with no value around them."""
    found, waiting = [], [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Named):
            found.append(one.name)
        elif isinstance(one, Either):
            waiting += inside(one)
    return found


def _refuse_circles(order: list[str], known: Mapping[str, Node]) -> None:
    done: set[str] = set()
    for start in order:
        path = {} if start in done else {start: iter(_bare(known[start]))}
        while path:
            last = next(reversed(path))
            name = next(path[last], None)
            if name is None:
                done.add(last)
                del path[last]
            elif name in path:
                raise Endless(name)
            elif name not in done:
                path[name] = iter(_bare(known[name]))


def _alive(order: list[str], known: Mapping[str, Node]) -> set[str]:
    """The names of definitions that some value fits."""
    found: set[str] = set()
    for _ in range(ROUNDS):
        before = len(found)
        for name in order:
            if name not in found and _lives(known[name], found):
                found.add(name)
        if len(found) == before:
            return found
    raise Knotted


def _lives(node: Node, alive: set[str]) -> bool:
    match node:
        case Nothing():
            return False
        case Named():
            return node.name in alive
        case Either():
            return any(_lives(option, alive) for option in inside(node))
        case Array():
            needed = min(node.least, len(node.first) + 1)
            return all(_lives(item(node, index), alive) for index in range(needed))
        case Object():
            members = dict(node.members)
            return all(_lives(members.get(name, node.others), alive) for name in node.required)
        case Foreign() if node.own is not None:
            return _lives(node.own, alive)
    return True


def _shallow(node: Node) -> bool:
    level = [node]
    for _ in range(DEEP):
        level = [inner for one in level for inner in inside(one)]
        if not level:
            return True
    return False


@dataclass
class _Tidy:
    """Rebuilds nodes. `dead` are the names that stand for nothing."""

    dead: set[str]
    inlined: dict[str, Node] = field(default_factory=dict)
    done: dict[str, Node] = field(default_factory=dict)

    def of(self, node: Node) -> Node:
        match node:
            case Named():
                return NOTHING if node.name in self.dead else self.inlined.get(node.name, node)
            case Implied():
                return self.of(node.kept)
            case Either():
                return either([self.of(option) for option in node.options])
            case Array():
                first = tuple([self.of(one) for one in node.first])
                return array(replace(node, first=first, rest=self.of(node.rest)))
            case Object():
                return self._object(node)
            case Foreign() if node.own is not None:
                own = self._object(node.own)
                return replace(node, own=own) if isinstance(own, Object) else own
        return node

    def _object(self, node: Object) -> Node:
        others = self.of(node.others)
        members = [(name, self.of(inner)) for name, inner in node.members]
        members += [(name, others) for name in sorted(node.required - set(node.names))]
        keyed = [(keys, self.of(inner)) for keys, inner in node.keyed]
        found = replace(node, members=tuple(members), others=others, keyed=tuple(keyed))
        return object_(found)
