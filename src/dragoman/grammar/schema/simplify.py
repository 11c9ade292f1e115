"""Nodes in their simplest form, and what can be told by looking at one or two of them.

A schema that names no `type` is read as `Implied`: it allows every kind of value, but only some of
them are what its author meant. As long as it is put together with others it counts as it was said,
and at the end only what was meant is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd, lcm

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
# every kind of value there is, as it is where nothing is said about it
ALL_TYPES: dict[str, Node] = {"string": String(), "number": Number(), "boolean": BOOLEAN}
ALL_TYPES |= {"null": NULL, "array": Array(), "object": Object()}
_TYPE_NAMES: dict[type, str] = {str: "string", int: "number", float: "number", bool: "boolean"}
_TYPE_NAMES |= {type(None): "null", list: "array", dict: "object"}
MAX_EXACT_INTEGER = 2**53  # whole numbers below are told apart in floating point
MAX_DECIMALS = 32  # behind the point, of a multiple


@dataclass(frozen=True)
class ImpliedTypes(AnyOf):
    """What a schema without a `type` allows; the first options are those that were meant."""

    intended_count: int = 0

    @property
    def intended(self) -> Node:
        return union_nodes(self.options[: self.intended_count])


def union_nodes(options: Iterable[Node]) -> Node:
    """What one of these allows, in as few options as one can see."""
    found: dict[Node, None] = {}
    values: dict[str, None] = {}
    listed = Literals(())  # stands for all values, in the place of the first
    for option in options:
        for one in option.options if type(option) is AnyOf else (option,):
            if isinstance(one, Anything):
                return one
            if isinstance(one, Literals):
                values |= dict.fromkeys(one.values)
                found[listed] = None
            elif not isinstance(one, Nothing):
                found[one] = None
    every = [Literals(tuple(values)) if one == listed else one for one in found]
    if len(every) > 1:
        return AnyOf(tuple(every))
    return every[0] if every else NOTHING


def expand_options(node: Node, definitions: Mapping[str, Node]) -> list[Node]:
    """What a value may be, each once: choices and names are followed, what is empty is left out."""
    found: dict[Node, None] = {}
    queue, seen = [node], set[Node]()
    while queue:
        one = queue.pop(0)
        if one in seen:
            continue
        seen.add(one)
        match one:
            case SchemaReference():
                queue.append(definitions[one.name])
            case AnyOf():
                queue += one.options
            case Nothing():
                pass
            case _:
                found[one] = None
    return list(found)


def imply_types(options: Iterable[Node], meant: Collection[str]) -> Node:
    """What words about some kinds of values say: of other kinds, they say nothing."""
    if not meant:
        return ANYTHING
    kept = list_options(union_nodes(options))
    rest = [node for kind, node in ALL_TYPES.items() if kind not in meant]
    return ImpliedTypes((*kept, *rest), len(kept)) if kept else union_nodes(rest)


def list_options(node: Node) -> tuple[Node, ...]:
    """The options of a node; none where it allows nothing."""
    if isinstance(node, Nothing):
        return ()
    return node.options if type(node) is AnyOf else (node,)


def child_nodes(node: Node) -> tuple[Node, ...]:
    """The nodes right below one, those that are kept."""
    match node:
        case ImpliedTypes():
            return node.options[: node.intended_count]
        case AnyOf():
            return node.options
        case Array():
            return (*node.prefix_items, node.items)
        case Object():
            return (
                *(inner for _, inner in (*node.properties, *node.pattern_properties)),
                node.additional,
            )
        case LlguidanceSchema() if node.object_node is not None:
            return (node.object_node,)
    return ()


def count_nodes(node: Node, most: int = limits.MAX_NODES) -> int:
    """How many nodes there are, or a number above the limit."""
    count, waiting = 0, [node]
    while waiting and count <= most:
        count += 1
        waiting += child_nodes(waiting.pop())
    return count


def node_types(node: Node) -> list[str] | None:
    """The kinds of the values that a node allows, where it is plain to see."""
    found: dict[str, None] = {}
    for one in list_options(node):
        match one:
            case String():
                found["string"] = None
            case Number():
                found["number"] = None
            case Array():
                found["array"] = None
            case Object():
                found["object"] = None
            case Literals():
                found |= dict.fromkeys(_TYPE_NAMES[type(json.loads(text))] for text in one.values)
            case _:
                return None
    return list(found)


def covers_types_of(one: Node, other: Node) -> bool:
    """Whether the one names kinds and nothing else, and the other is of these."""
    bare = {type(option) for option in list_options(one) if option in ALL_TYPES.values()}
    bare.discard(Literals)
    return bool(bare) and all(type(option) in bare for option in list_options(other))


def item_node(node: Array, index: int) -> Node:
    return node.prefix_items[index] if index < len(node.prefix_items) else node.items


def simplify_array(node: Array) -> Node:
    """A list that is no longer than it can be."""
    ends = [index for index, one in enumerate(node.prefix_items) if isinstance(one, Nothing)]
    ends += [len(node.prefix_items)] if isinstance(node.items, Nothing) else []
    ends += [node.max_items] if node.max_items is not None else []
    most = min(ends, default=None)
    if most is not None and node.min_items > most:
        return NOTHING
    if most is None or most > len(node.prefix_items):
        return node
    return Array(node.prefix_items[:most], NOTHING, node.min_items, most)


def simplify_object(node: Object) -> Node:
    """An object without members that it cannot have."""
    closed = isinstance(node.additional, Nothing)
    barred = {name for name, inner in node.properties if isinstance(inner, Nothing)}
    if node.required & barred or (closed and node.required - set(node.names)):
        return NOTHING
    if not closed or not barred or node.patterns:
        return node
    kept = tuple((name, inner) for name, inner in node.properties if name not in barred)
    return replace(node, properties=kept)


def has_empty_range(node: String | Number) -> bool:
    """Whether bounds leave nothing between them."""
    if isinstance(node, String):
        return node.max_length is not None and node.min_length > node.max_length
    low = [(value, strict) for value, strict in _list_bounds(node.minimum, node.exclusive_minimum)]
    high = [(value, strict) for value, strict in _list_bounds(node.maximum, node.exclusive_maximum)]
    if node.integer:
        low = [(floor(value) + 1 if strict else ceil(value), False) for value, strict in low]
        high = [(ceil(value) - 1 if strict else floor(value), False) for value, strict in high]
    return any(
        least > most or (least == most and (strict or also))
        for least, strict in low
        for most, also in high
    )


def _list_bounds(inner: str | None, outer: str | None) -> list[tuple[float, bool]]:
    pairs = ((inner, False), (outer, True))
    return [(json.loads(text), strict) for text, strict in pairs if text is not None]


def drop_rounded_bounds(node: Number) -> Number:
    """A number without the bounds that may have been drawn nearer."""
    names = ("minimum", "maximum", "exclusive_minimum", "exclusive_maximum")
    said = {name: text for name in names if (text := getattr(node, name)) is not None}
    kept = {name: text for name, text in said.items() if abs(json.loads(text)) < MAX_EXACT_INTEGER}
    return Number(node.integer, multiple_of=node.multiple_of, **kept)


def tighter_bound(one: str | None, other: str | None, choose: Callable[..., str]) -> str | None:
    """The bound that leaves less; `choose` is `min` or `max`."""
    said = [text for text in (one, other) if text is not None]
    return choose(said, key=json.loads) if said else None


def smaller_limit(one: int | None, other: int | None) -> int | None:
    return min((one_ for one_ in (one, other) if one_ is not None), default=None)


def common_multiple(one: str | None, other: str | None) -> str | None:
    """What is a multiple of both; empty where that has no short text."""
    if one is None or other is None or one == other:
        return one or other
    left, right = Fraction(one), Fraction(other)
    both = Fraction(lcm(left.numerator, right.numerator), gcd(left.denominator, right.denominator))
    if both.denominator == 1:
        return str(both.numerator)
    for digits in range(1, MAX_DECIMALS):
        if (both * 10**digits).denominator == 1:
            return f"{(both * 10**digits).numerator}e-{digits}"
    return ""


def number_matches(value: Json, node: Number) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if node.integer and value != floor(value):
        return False
    low, high = (
        _list_bounds(node.minimum, node.exclusive_minimum),
        _list_bounds(node.maximum, node.exclusive_maximum),
    )
    if any(value < end or (strict and value == end) for end, strict in low):
        return False
    if any(value > end or (strict and value == end) for end, strict in high):
        return False
    if node.multiple_of is None:
        return True
    return (Fraction(json.dumps(value)) / Fraction(node.multiple_of)).denominator == 1


def canonical_json(value: Json) -> str:
    """A text that is the same for values that JSON schema takes for equal."""
    return json.dumps(_normalize_numbers(value), sort_keys=True)


def _normalize_numbers(value: Json) -> Json:
    match value:
        case float() if value == floor(value):
            return int(value)
        case list():
            return [_normalize_numbers(one) for one in value]
        case dict():
            return {name: _normalize_numbers(one) for name, one in value.items()}
    return value
