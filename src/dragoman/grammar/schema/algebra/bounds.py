"""Bounds on numbers and lengths: whether they are satisfiable, and how they combine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, gcd, lcm

from dragoman.grammar.schema.nodes import Literals, Node, Nothing, Number, String
from dragoman.types import Json

MAX_DECIMALS = 32  # of `multipleOf`


def has_empty_range(node: String | Number) -> bool:
    """Whether no value lies within the bounds of a node."""
    if isinstance(node, String):
        return node.max_length is not None and node.min_length > node.max_length
    lower = _list_bounds(node.minimum, node.exclusive_minimum)
    upper = _list_bounds(node.maximum, node.exclusive_maximum)
    if node.integer:
        lower = [(floor(low) + 1 if exclusive else ceil(low), False) for low, exclusive in lower]
        upper = [(ceil(high) - 1 if exclusive else floor(high), False) for high, exclusive in upper]
    return any(
        low > high or (low == high and (low_exclusive or high_exclusive))
        for low, low_exclusive in lower
        for high, high_exclusive in upper
    )


def _list_bounds(inclusive: str | None, exclusive: str | None) -> list[tuple[float, bool]]:
    """Return bounds on one side, each with whether it is exclusive."""
    bounds = ((inclusive, False), (exclusive, True))
    return [(json.loads(text), is_exclusive) for text, is_exclusive in bounds if text is not None]


def number_matches(value: Json, node: Number) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if node.integer and value != floor(value):
        return False
    lower = _list_bounds(node.minimum, node.exclusive_minimum)
    if any(value < low or (exclusive and value == low) for low, exclusive in lower):
        return False
    upper = _list_bounds(node.maximum, node.exclusive_maximum)
    if any(value > high or (exclusive and value == high) for high, exclusive in upper):
        return False
    if node.multiple_of is None:
        return True
    return (Fraction(json.dumps(value)) / Fraction(node.multiple_of)).denominator == 1


def choose_tighter_bound(
    left: str | None, right: str | None, choose: Callable[..., str]
) -> str | None:
    """Return the stricter of two bounds; `choose` is `max` for lower and `min` for upper ones."""
    bounds = [bound for bound in (left, right) if bound is not None]
    return choose(bounds, key=json.loads) if bounds else None


def drop_weaker_bounds(node: Number) -> Number:
    """Keep one bound on each side: the inclusive or the exclusive one."""
    if node.minimum is not None and node.exclusive_minimum is not None:
        if json.loads(node.minimum) > json.loads(node.exclusive_minimum):
            node = replace(node, exclusive_minimum=None)
        else:
            node = replace(node, minimum=None)
    if node.maximum is not None and node.exclusive_maximum is not None:
        if json.loads(node.maximum) < json.loads(node.exclusive_maximum):
            node = replace(node, exclusive_maximum=None)
        else:
            node = replace(node, maximum=None)
    return node


def collapse_range(node: Number) -> Node:
    """Return a literal for a range of one number."""
    is_single = node.minimum is not None and node.maximum is not None
    if not is_single or json.loads(node.minimum or "0") != json.loads(node.maximum or "0"):
        return node
    value = node.minimum or "0"
    return Literals((value,)) if number_matches(json.loads(value), node) else Nothing()


def choose_smaller_limit(left: int | None, right: int | None) -> int | None:
    return min((limit for limit in (left, right) if limit is not None), default=None)


def compute_common_multiple(left: str | None, right: str | None) -> str | None:
    """Return the least common multiple; an empty text if it has too many decimals."""
    if left is None or right is None or left == right:
        return left or right
    a, b = Fraction(left), Fraction(right)
    multiple = Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))
    if multiple.denominator == 1:
        return str(multiple.numerator)
    for decimals in range(1, MAX_DECIMALS):
        if (multiple * 10**decimals).denominator == 1:
            return f"{(multiple * 10**decimals).numerator}e-{decimals}"
    return ""
