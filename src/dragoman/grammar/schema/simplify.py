"""Builds nodes in their simplest form, and answers questions about single nodes.

A schema without `type` is represented by `ImpliedTypes`: it allows every type of value, but its
author meant only those that its keywords are about. While schemas are intersected, it counts as
written; in the result, only the intended types remain.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import floor

from dragoman.grammar.schema import limits
from dragoman.grammar.schema.nodes import (
    BOOLEAN,
    NULL,
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
from dragoman.types import Json

ANYTHING, NOTHING = Anything(), Nothing()
# every type of JSON value, without constraints
ALL_TYPES: dict[str, Node] = {
    "string": String(),
    "number": Number(),
    "boolean": BOOLEAN,
    "null": NULL,
    "array": Array(),
    "object": Object(),
}
_TYPE_NAMES: dict[type, str] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


@dataclass(frozen=True)
class ImpliedTypes(AnyOf):
    """What a schema without `type` allows; the first `intended_count` options are the intended."""

    intended_count: int = 0

    @property
    def intended(self) -> Node:
        return union_nodes(self.options[: self.intended_count])


def union_nodes(nodes: Iterable[Node]) -> Node:
    """Return a node for what at least one of the nodes allows, with few options."""
    options: dict[Node, None] = {}
    values: dict[str, None] = {}
    all_literals = Literals(())  # stands for `values`, in the place of the first
    for node in nodes:
        for option in node.options if type(node) is AnyOf else (node,):
            if isinstance(option, Anything):
                return option
            if isinstance(option, Literals):
                values |= dict.fromkeys(option.values)
                options[all_literals] = None
            elif not isinstance(option, Nothing):
                options[option] = None
    merged = [Literals(tuple(values)) if option == all_literals else option for option in options]
    if len(merged) > 1:
        return AnyOf(tuple(merged))
    return merged[0] if merged else NOTHING


def expand_options(node: Node, definitions: Mapping[str, Node]) -> list[Node]:
    """List what a value may be: follow options and references, and leave out `Nothing`."""
    expanded: dict[Node, None] = {}
    queue, seen = [node], set[Node]()
    while queue:
        current = queue.pop(0)
        if current in seen:
            continue
        seen.add(current)
        match current:
            case SchemaReference():
                queue.append(definitions[current.name])
            case AnyOf():
                queue += current.options
            case Nothing():
                pass
            case _:
                expanded[current] = None
    return list(expanded)


def imply_types(options: Iterable[Node], types: Collection[str]) -> Node:
    """Return what keywords about some types allow: they do not constrain values of other types."""
    if not types:
        return ANYTHING
    intended = list_options(union_nodes(options))
    rest = [node for type_name, node in ALL_TYPES.items() if type_name not in types]
    return ImpliedTypes((*intended, *rest), len(intended)) if intended else union_nodes(rest)


def list_options(node: Node) -> tuple[Node, ...]:
    """Return the options of a node, or the node itself; none for `Nothing`."""
    if isinstance(node, Nothing):
        return ()
    return node.options if type(node) is AnyOf else (node,)


def child_nodes(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below one; of implied types, only the intended."""
    match node:
        case ImpliedTypes():
            return node.options[: node.intended_count]
        case AnyOf():
            return node.options
        case Array():
            return (*node.prefix_items, node.items)
        case Object():
            properties = (*node.properties, *node.pattern_properties)
            return (*(child for _, child in properties), node.additional)
        case LlguidanceSchema() if node.object_node is not None:
            return (node.object_node,)
    return ()


def count_nodes(node: Node, limit: int = limits.MAX_NODES) -> int:
    """Count the nodes of a tree; stop at some number above the limit."""
    count, queue = 0, [node]
    while queue and count <= limit:
        count += 1
        queue += child_nodes(queue.pop())
    return count


def node_types(node: Node) -> list[str] | None:
    """Return the types of the values that a node allows, or None if it does not show them."""
    types: dict[str, None] = {}
    for option in list_options(node):
        match option:
            case String():
                types["string"] = None
            case Number():
                types["number"] = None
            case Array():
                types["array"] = None
            case Object():
                types["object"] = None
            case Literals():
                types |= dict.fromkeys(
                    _TYPE_NAMES[type(json.loads(text))] for text in option.values
                )
            case _:
                return None
    return list(types)


def covers_types_of(node: Node, other: Node) -> bool:
    """Whether a node allows all values of some types, and all options of the other have these."""
    covered = {type(option) for option in list_options(node) if option in ALL_TYPES.values()}
    covered.discard(Literals)
    return bool(covered) and all(type(option) in covered for option in list_options(other))


def item_node(node: Array, index: int) -> Node:
    return node.prefix_items[index] if index < len(node.prefix_items) else node.items


def simplify_array(node: Array) -> Node:
    """Remove what lies beyond the greatest possible length."""
    lengths = [index for index, item in enumerate(node.prefix_items) if isinstance(item, Nothing)]
    lengths += [len(node.prefix_items)] if isinstance(node.items, Nothing) else []
    lengths += [node.max_items] if node.max_items is not None else []
    max_items = min(lengths, default=None)
    if max_items is not None and node.min_items > max_items:
        return NOTHING
    if max_items is None or max_items > len(node.prefix_items):
        return node
    return Array(node.prefix_items[:max_items], NOTHING, node.min_items, max_items)


def simplify_object(node: Object) -> Node:
    """Remove the properties that allow no value."""
    is_closed = isinstance(node.additional, Nothing)
    impossible = {name for name, value in node.properties if isinstance(value, Nothing)}
    if node.required & impossible or (is_closed and node.required - set(node.names)):
        return NOTHING
    if not is_closed or not impossible or node.patterns:
        return node
    possible = tuple((name, value) for name, value in node.properties if name not in impossible)
    return replace(node, properties=possible)


def canonical_json(value: Json) -> str:
    """Return a text that is the same for values that JSON Schema considers equal."""
    return json.dumps(_normalize_numbers(value), sort_keys=True)


def _normalize_numbers(value: Json) -> Json:
    match value:
        case float() if value == floor(value):
            return int(value)
        case list():
            return [_normalize_numbers(item) for item in value]
        case dict():
            return {name: _normalize_numbers(item) for name, item in value.items()}
    return value
