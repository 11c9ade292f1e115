"""Objects that may have only some members, or only so many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dragoman.grammar.schema.nodes import Node, Nothing, Object
from dragoman.grammar.schema.simplify import NOTHING, simplify_object, union_nodes

MAX_OPTIONAL = 16  # members of which one must be there, each with an option of its own


def restrict_properties(node: Object, names: Sequence[str]) -> Object:
    """An object with no members but these."""
    members = dict(node.properties)
    order = [name for name in members if name in names] + list(names)
    kept = {name: members.get(name, node.additional) for name in order}
    return Object(tuple(kept.items()), node.required, NOTHING)


def limit_property_count(node: Object, least: int, most: int | None) -> tuple[Node, list[str]]:
    """An object with as many members as it may have, and the words that nodes cannot say."""
    left: list[str] = []
    if most is not None:
        if most < max(least, len(node.required)):
            return NOTHING, []
        if most == len(node.required):
            node = restrict_properties(node, sorted(node.required))
        elif not isinstance(node.additional, Nothing) or most < len(node.properties):
            left.append("maxProperties")
    tidy = simplify_object(node)
    if not isinstance(tidy, Object) or least <= len(tidy.required):
        return tidy, left
    missing = least - len(tidy.required)
    optional = [name for name in tidy.names if name not in tidy.required]
    if not isinstance(tidy.additional, Nothing):
        return tidy, [*left, "minProperties"]
    if missing > len(optional):
        return NOTHING, []
    if missing == len(optional):
        return replace(tidy, required=frozenset(tidy.names)), left
    if missing == 1 and len(optional) <= MAX_OPTIONAL:
        options = [replace(tidy, required=tidy.required | {name}) for name in optional]
        return union_nodes(options), left
    return tidy, [*left, "minProperties"]


def require_exactly_one(choices: Sequence[frozenset[str]]) -> list[Node] | None:
    """The options of having all of one choice's members and of no other's.

    None where another choice lacks more than one member: any of them could be the missing one.
    """
    found: list[Node] = []
    for at, choice in enumerate(choices):
        missing = [other - choice for where, other in enumerate(choices) if where != at]
        if any(len(names) > 1 for names in missing):
            return None
        barred = {name: NOTHING for names in missing for name in sorted(names)}
        possible = all(missing)
        found.append(Object(tuple(barred.items()), choice) if possible else NOTHING)
    return found
