"""Objects with restricted property names or a restricted number of properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dragoman.grammar.schema.nodes import Node, Nothing, Object
from dragoman.grammar.schema.simplify import NOTHING, simplify_object, union_nodes

MAX_OPTIONAL = 16  # properties of which one is needed: each gets an option of its own


def restrict_properties(node: Object, names: Sequence[str]) -> Object:
    """Allow only properties with these names."""
    properties = dict(node.properties)
    ordered = [name for name in properties if name in names] + list(names)
    allowed = {name: properties.get(name, node.additional) for name in ordered}
    return Object(tuple(allowed.items()), node.required, NOTHING)


def limit_property_count(node: Object, minimum: int, maximum: int | None) -> tuple[Node, list[str]]:
    """Apply `minProperties` and `maxProperties`; also return which of them nodes cannot express."""
    remaining: list[str] = []
    if maximum is not None:
        if maximum < max(minimum, len(node.required)):
            return NOTHING, []
        if maximum == len(node.required):
            node = restrict_properties(node, sorted(node.required))
        elif not isinstance(node.additional, Nothing) or maximum < len(node.properties):
            remaining.append("maxProperties")
    simple = simplify_object(node)
    if not isinstance(simple, Object) or minimum <= len(simple.required):
        return simple, remaining
    missing = minimum - len(simple.required)
    optional = [name for name in simple.names if name not in simple.required]
    if not isinstance(simple.additional, Nothing):
        return simple, [*remaining, "minProperties"]
    if missing > len(optional):
        return NOTHING, []
    if missing == len(optional):
        return replace(simple, required=frozenset(simple.names)), remaining
    if missing == 1 and len(optional) <= MAX_OPTIONAL:
        options = [replace(simple, required=simple.required | {name}) for name in optional]
        return union_nodes(options), remaining
    return simple, [*remaining, "minProperties"]


def require_exactly_one(groups: Sequence[frozenset[str]]) -> list[Node] | None:
    """Return options for objects that have all properties of exactly one group.

    None if a group has more than one property that another lacks: any of them could be the one
    that is missing.
    """
    options: list[Node] = []
    for index, group in enumerate(groups):
        others = [other - group for at, other in enumerate(groups) if at != index]
        if any(len(names) > 1 for names in others):
            return None
        excluded = {name: NOTHING for names in others for name in sorted(names)}
        is_possible = all(others)
        options.append(Object(tuple(excluded.items()), group) if is_possible else NOTHING)
    return options
