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
    Anything,
    Array,
    Either,
    Exactly,
    Foreign,
    Named,
    Node,
    Nothing,
    Number,
    Object,
    Text,
)
from dragoman.types import Json

ANYTHING, NOTHING = Anything(), Nothing()
# every kind of value there is, as it is where nothing is said about it
EVERY: dict[str, Node] = {"string": Text(), "number": Number(), "boolean": BOOLEAN}
EVERY |= {"null": NULL, "array": Array(), "object": Object()}
_KINDS: dict[type, str] = {str: "string", int: "number", float: "number", bool: "boolean"}
_KINDS |= {type(None): "null", list: "array", dict: "object"}
EXACT = 2**53  # whole numbers below are told apart in floating point
DIGITS = 32  # behind the point, of a multiple


@dataclass(frozen=True)
class Implied(Either):
    """What a schema without a `type` allows; the first options are those that were meant."""

    meant: int = 0

    @property
    def kept(self) -> Node:
        return either(self.options[: self.meant])


def either(options: Iterable[Node]) -> Node:
    """What one of these allows, in as few options as one can see."""
    found: dict[Node, None] = {}
    values: dict[str, None] = {}
    listed = Exactly(())  # stands for all values, in the place of the first
    for option in options:
        for one in option.options if type(option) is Either else (option,):
            if isinstance(one, Anything):
                return one
            if isinstance(one, Exactly):
                values |= dict.fromkeys(one.values)
                found[listed] = None
            elif not isinstance(one, Nothing):
                found[one] = None
    every = [Exactly(tuple(values)) if one == listed else one for one in found]
    if len(every) > 1:
        return Either(tuple(every))
    return every[0] if every else NOTHING


def leaves(node: Node, definitions: Mapping[str, Node]) -> list[Node]:
    """What a value may be, each once: choices and names are followed, what is empty is left out."""
    found: dict[Node, None] = {}
    queue, seen = [node], set[Node]()
    while queue:
        one = queue.pop(0)
        if one in seen:
            continue
        seen.add(one)
        match one:
            case Named():
                queue.append(definitions[one.name])
            case Either():
                queue += one.options
            case Nothing():
                pass
            case _:
                found[one] = None
    return list(found)


def implied(options: Iterable[Node], meant: Collection[str]) -> Node:
    """What words about some kinds of values say: of other kinds, they say nothing."""
    if not meant:
        return ANYTHING
    kept = several(either(options))
    rest = [node for kind, node in EVERY.items() if kind not in meant]
    return Implied((*kept, *rest), len(kept)) if kept else either(rest)


def several(node: Node) -> tuple[Node, ...]:
    """The options of a node; none where it allows nothing."""
    if isinstance(node, Nothing):
        return ()
    return node.options if type(node) is Either else (node,)


def inside(node: Node) -> tuple[Node, ...]:
    """The nodes right below one, those that are kept."""
    match node:
        case Implied():
            return node.options[: node.meant]
        case Either():
            return node.options
        case Array():
            return (*node.first, node.rest)
        case Object():
            return (*(inner for _, inner in (*node.members, *node.keyed)), node.others)
        case Foreign() if node.own is not None:
            return (node.own,)
    return ()


def size(node: Node, most: int = limits.NODES) -> int:
    """How many nodes there are, or a number above the limit."""
    count, waiting = 0, [node]
    while waiting and count <= most:
        count += 1
        waiting += inside(waiting.pop())
    return count


def kinds(node: Node) -> list[str] | None:
    """The kinds of the values that a node allows, where it is plain to see."""
    found: dict[str, None] = {}
    for one in several(node):
        match one:
            case Text():
                found["string"] = None
            case Number():
                found["number"] = None
            case Array():
                found["array"] = None
            case Object():
                found["object"] = None
            case Exactly():
                found |= dict.fromkeys(_KINDS[type(json.loads(text))] for text in one.values)
            case _:
                return None
    return list(found)


def covers(one: Node, other: Node) -> bool:
    """Whether the one names kinds and nothing else, and the other is of these."""
    bare = {type(option) for option in several(one) if option in EVERY.values()}
    bare.discard(Exactly)
    return bool(bare) and all(type(option) in bare for option in several(other))


def item(node: Array, index: int) -> Node:
    return node.first[index] if index < len(node.first) else node.rest


def array(node: Array) -> Node:
    """A list that is no longer than it can be."""
    ends = [index for index, one in enumerate(node.first) if isinstance(one, Nothing)]
    ends += [len(node.first)] if isinstance(node.rest, Nothing) else []
    ends += [node.most] if node.most is not None else []
    most = min(ends, default=None)
    if most is not None and node.least > most:
        return NOTHING
    if most is None or most > len(node.first):
        return node
    return Array(node.first[:most], NOTHING, node.least, most)


def object_(node: Object) -> Node:
    """An object without members that it cannot have."""
    closed = isinstance(node.others, Nothing)
    barred = {name for name, inner in node.members if isinstance(inner, Nothing)}
    if node.required & barred or (closed and node.required - set(node.names)):
        return NOTHING
    if not closed or not barred or node.patterns:
        return node
    kept = tuple((name, inner) for name, inner in node.members if name not in barred)
    return replace(node, members=kept)


def impossible(node: Text | Number) -> bool:
    """Whether bounds leave nothing between them."""
    if isinstance(node, Text):
        return node.most is not None and node.least > node.most
    low = [(value, strict) for value, strict in _ends(node.minimum, node.above)]
    high = [(value, strict) for value, strict in _ends(node.maximum, node.below)]
    if node.integer:
        low = [(floor(value) + 1 if strict else ceil(value), False) for value, strict in low]
        high = [(ceil(value) - 1 if strict else floor(value), False) for value, strict in high]
    return any(
        least > most or (least == most and (strict or also))
        for least, strict in low
        for most, also in high
    )


def _ends(inner: str | None, outer: str | None) -> list[tuple[float, bool]]:
    pairs = ((inner, False), (outer, True))
    return [(json.loads(text), strict) for text, strict in pairs if text is not None]


def near(node: Number) -> Number:
    """A number without the bounds that may have been drawn nearer."""
    names = ("minimum", "maximum", "above", "below")
    said = {name: text for name in names if (text := getattr(node, name)) is not None}
    kept = {name: text for name, text in said.items() if abs(json.loads(text)) < EXACT}
    return Number(node.integer, multiple=node.multiple, **kept)


def tighter(one: str | None, other: str | None, choose: Callable[..., str]) -> str | None:
    """The bound that leaves less; `choose` is `min` or `max`."""
    said = [text for text in (one, other) if text is not None]
    return choose(said, key=json.loads) if said else None


def least(one: int | None, other: int | None) -> int | None:
    return min((one_ for one_ in (one, other) if one_ is not None), default=None)


def common(one: str | None, other: str | None) -> str | None:
    """What is a multiple of both; empty where that has no short text."""
    if one is None or other is None or one == other:
        return one or other
    left, right = Fraction(one), Fraction(other)
    both = Fraction(lcm(left.numerator, right.numerator), gcd(left.denominator, right.denominator))
    if both.denominator == 1:
        return str(both.numerator)
    for digits in range(1, DIGITS):
        if (both * 10**digits).denominator == 1:
            return f"{(both * 10**digits).numerator}e-{digits}"
    return ""


def number_fits(value: Json, node: Number) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if node.integer and value != floor(value):
        return False
    low, high = _ends(node.minimum, node.above), _ends(node.maximum, node.below)
    if any(value < end or (strict and value == end) for end, strict in low):
        return False
    if any(value > end or (strict and value == end) for end, strict in high):
        return False
    if node.multiple is None:
        return True
    return (Fraction(json.dumps(value)) / Fraction(node.multiple)).denominator == 1


def same(value: Json) -> str:
    """A text that is the same for values that JSON schema takes for equal."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Json) -> Json:
    match value:
        case float() if value == floor(value):
            return int(value)
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {name: _plain(one) for name, one in value.items()}
    return value
