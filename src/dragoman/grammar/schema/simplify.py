"""Builds nodes in their simplest form, and answers questions about single nodes.

A schema without `type` is represented by `ImpliedTypes`: it allows every type of value, but its
author meant only those that its keywords are about. While schemas are intersected, it counts as
written; in the result, only the intended types remain, and a warning says so. In a strict schema,
all of them remain.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    place: str = field(default="", compare=False)  # of the schema: a JSON pointer

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


def imply_types(options: Iterable[Node], types: Collection[str], place: str) -> Node:
    """Return what keywords about some types allow: they do not constrain values of other types."""
    if not types:
        return ANYTHING
    intended = list_options(union_nodes(options))
    rest = [node for type_name, node in ALL_TYPES.items() if type_name not in types]
    if not intended:
        return union_nodes(rest)
    return ImpliedTypes((*intended, *rest), len(intended), place)


def list_options(node: Node) -> tuple[Node, ...]:
    """Return the options of a node, or the node itself; none for `Nothing`."""
    if isinstance(node, Nothing):
        return ()
    return node.options if type(node) is AnyOf else (node,)


def get_child_nodes(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below one; of implied types, only the intended."""
    match node:
        case ImpliedTypes():
            return node.options[: node.intended_count]
        case AnyOf():
            return node.options
        case Array():
            contained = () if isinstance(node.contains, Anything) else (node.contains,)
            return (*node.prefix_items, node.items, *contained)
        case Object():
            properties = (*node.properties, *node.pattern_properties)
            return (*(child for _, child in properties), node.additional)
        case LlguidanceSchema() if node.json_node is not None:
            return (node.json_node,)
    return ()


def count_nodes(node: Node, limit: int = limits.MAX_NODES) -> int:
    """Count the nodes of a tree; stop at some number above the limit."""
    count, queue = 0, [node]
    while queue and count <= limit:
        count += 1
        queue += get_child_nodes(queue.pop())
    return count


def get_node_types(node: Node) -> list[str] | None:
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


def literal_to_node(text: str) -> Node:
    """Return a node for the values that JSON Schema considers equal to one; text is its JSON."""
    value = json.loads(text)
    match value:
        case list():
            items = tuple(literal_to_node(json.dumps(item)) for item in value)
            return Array(items, NOTHING, len(items), len(items))
        case dict():
            properties = [(name, literal_to_node(json.dumps(item))) for name, item in value.items()]
            return Object(tuple(properties), frozenset(value), NOTHING)
    return Literals((text,))


def covers_types_of(node: Node, other: Node) -> bool:
    """Whether a node allows all values of some types, and all options of the other have these."""
    covered = {type(option) for option in list_options(node) if option in ALL_TYPES.values()}
    covered.discard(Literals)
    return bool(covered) and all(type(option) in covered for option in list_options(other))


def get_item_node(node: Array, index: int) -> Node:
    return node.prefix_items[index] if index < len(node.prefix_items) else node.items


def simplify_array(node: Array) -> Node:
    """Remove the item nodes beyond the greatest possible length."""
    lengths = [index for index, item in enumerate(node.prefix_items) if isinstance(item, Nothing)]
    lengths += [len(node.prefix_items)] if isinstance(node.items, Nothing) else []
    lengths += [node.max_items] if node.max_items is not None else []
    lengths += [len(node.items.values)] if node.unique and isinstance(node.items, Literals) else []
    max_items = min(lengths, default=None)
    if not isinstance(node.contains, Anything):
        node = replace(node, min_items=max(node.min_items, 1))
    is_empty = max_items is not None and node.min_items > max_items
    if is_empty or isinstance(node.contains, Nothing):
        return NOTHING
    if max_items is not None and max_items <= 1:
        node = replace(node, unique=False, max_items=max_items)
    if max_items is None or max_items > len(node.prefix_items):
        return node
    prefix_items = node.prefix_items[:max_items]
    return replace(node, prefix_items=prefix_items, items=NOTHING, max_items=max_items)


def simplify_object(node: Object) -> Node:
    """Remove the properties that allow no value, and counts that have no effect."""
    is_closed = not node.pattern_properties and isinstance(node.additional, Nothing)
    impossible = {name for name, value in node.properties if isinstance(value, Nothing)}
    if node.required & impossible or (is_closed and node.required - set(node.names)):
        return NOTHING
    if is_closed:
        possible = tuple((name, value) for name, value in node.properties if name not in impossible)
        node = replace(node, properties=possible, patterns=())
    return _simplify_counts(node, is_closed=is_closed)


def _simplify_counts(node: Object, *, is_closed: bool) -> Node:
    required, minimum, maximum = len(node.required), node.min_properties, node.max_properties
    if maximum is not None and maximum < max(minimum, required):
        return NOTHING
    if maximum == required:
        values = dict(node.properties)
        names = [*node.names, *sorted(node.required - set(node.names))]
        kept = [(name, values.get(name, node.additional)) for name in names]
        return Object(
            tuple((name, value) for name, value in kept if name in node.required),
            node.required,
            NOTHING,
        )
    minimum = minimum if minimum > required else 0
    if is_closed:
        count = len(node.properties)
        if minimum > count:
            return NOTHING
        if minimum == count and minimum:
            return replace(
                node, required=frozenset(node.names), min_properties=0, max_properties=None
            )
        maximum = None if maximum is None or maximum >= count else maximum
    return replace(node, min_properties=minimum, max_properties=maximum)


def needs_json(node: Node) -> bool:
    """Whether a node has constraints that only a writer of JSON can enforce."""
    match node:
        case String():
            return bool(node.excluded_patterns)
        case Array():
            return node.unique or not isinstance(node.contains, Anything)
        case Object():
            is_counted = bool(node.min_properties) or node.max_properties is not None
            return is_counted or bool(node.patterns)
    return False


def write_canonical_json(value: Json) -> str:
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
