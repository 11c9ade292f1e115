"""Writes members and items: a separated sequence, in a fixed order or in any order.

Members in any order need no rule for each order. A rule of llguidance may have a parameter, a
number of 64 bits: one bit for each member says whether it is written, so each comes at most once,
and the sequence ends only if the bits of all required members are set. The bits that are left count
members whose names are not listed, where their number is limited. With more members than bits,
there is a rule for each member, in the order of the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dragoman.grammar.lark_builder import EMPTY, LarkBuilder, format_repeat
from dragoman.grammar.schema.limits import MAX_BITS
from dragoman.grammar.schema.nodes import Array, Node, Nothing

COUNTER_BITS = 12  # of the counter of members


class Counts(NamedTuple):
    """How many members or items there may be."""

    least: int = 0
    most: int | None = None

    def list_minimum(self, counter: str) -> list[str]:
        """List the condition that a counter is high enough."""
        return [f"ge({counter}, {self.least})"] if self.least > 1 else []

    def list_maximum(self, counter: str) -> list[str]:
        """List the condition that there may be one more."""
        return [] if self.most is None else [f"lt({counter}, {self.most})"]

    def list_sum_minimum(self, bits: str, bit_count: int, counter: str | None) -> list[str]:
        """List the condition that bits and a counter together are high enough."""
        if self.least <= 1:
            return []
        if counter is None:
            return [f"bit_count_ge({bits}, {self.least})"]
        terms = [
            f"and(bit_count_ge({bits}, {count}), ge({counter}, {max(self.least - count, 0)}))"
            for count in range(min(bit_count, self.least) + 1)
        ]
        return [combine("or", terms)]

    def list_sum_maximum(self, bits: str, bit_count: int, counter: str | None) -> list[str]:
        """List the condition that bits and a counter together allow one more."""
        if self.most is None:
            return []
        if counter is None:
            return [f"bit_count_lt({bits}, {self.most})"]
        if not bit_count:
            return self.list_maximum(counter)
        terms = [
            f"and(bit_count_le({bits}, {count}), lt({counter}, {self.most - count}))"
            for count in range(min(bit_count, self.most - 1) + 1)
        ]
        return [combine("or", terms)]


def combine(function: str, conditions: Sequence[str]) -> str:
    """Combine conditions by a function of two."""
    combined = conditions[-1]
    for condition in reversed(conditions[:-1]):
        combined = f"{function}({condition}, {combined})"
    return combined


ANY_COUNT = Counts()


def write_sequence(
    lark: LarkBuilder,
    members: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    separator: str,
    counts: Counts = ANY_COUNT,
) -> str:
    """Write at least one member: each at most once, the required ones exactly once.

    Members come in any order, and any number of `other` members between them. A rule's parameter
    has too few bits for very many members: these come in order, and others follow them.
    """
    if not members:
        return EMPTY if other is None else _write_repeated(other, separator, counts)
    if len(members) == 1 and other is None:
        return lark.add_rule(next(iter(members.values())), "part")
    if len(members) > MAX_BITS:
        return _write_in_order(lark, members, required, other, separator)
    return _write_in_any_order(lark, members, required, other, separator, counts)


def _write_repeated(item: str, separator: str, counts: Counts) -> str:
    if counts.most == 1:
        return item
    most = None if counts.most is None else counts.most - 1
    return f"{item} ({separator} {item}){format_repeat(max(counts.least, 1) - 1, most)}"


def _write_in_order(
    lark: LarkBuilder,
    members: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    separator: str,
) -> str:
    """Write two chains of rules: for the members after a written one, and for the first ones."""
    members = {name: lark.add_rule(member, "part") for name, member in members.items()}
    more = "" if other is None else f"({separator} {other})*"
    after_some = lark.add_rule(more or EMPTY, "rest")
    after_none = None if other is None else lark.add_rule(f"{other} {more}", "rest")
    for name, member in reversed(list(members.items())):
        first = f"{member} {after_some}"
        if name in required:
            after_none = lark.add_rule(first, "rest")
            after_some = lark.add_rule(f"{separator} {first}", "rest")
            continue
        options = [first] if after_none is None else [first, after_none]
        after_none = lark.add_rule(" | ".join(options), "rest")
        after_some = lark.add_rule(f"{separator} {first} | {after_some}", "rest")
    return after_none or EMPTY


def _write_in_any_order(
    lark: LarkBuilder,
    members: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    separator: str,
    counts: Counts,
) -> str:
    """Write a rule with a bit for each member, set once it is written; required ones come first.

    If the number of members is limited, the bits after those of the members count the `other` ones.
    A parameter changes in one way for each symbol, so that it cannot count all of them.
    """
    members = {name: lark.add_rule(member, "part") for name, member in members.items()}
    bits = sorted(members, key=lambda name: name not in required)
    required_count = sum(name in required for name in bits)
    more = lark.reserve("more")
    size, counter = f"[0:{len(bits)}]", None
    if other is not None and counts != ANY_COUNT:
        counter = f"[{len(bits)}:{len(bits) + COUNTER_BITS}]"
    may_end = [f"is_ones([0:{required_count}])"] if required_count else []
    may_end += counts.list_sum_minimum(size, len(bits), counter)
    # there must be room for the required members, so only the optional ones are limited
    optional_count = len(bits) - required_count
    room = Counts(most=None if counts.most is None else counts.most - required_count)
    may_go_on = room.list_sum_maximum(f"[{required_count}:{len(bits)}]", optional_count, counter)
    lines = [EMPTY + format_condition(may_end)]
    for bit, name in enumerate(bits):
        conditions = [f"bit_clear({bit})", *(() if name in required else may_go_on)]
        lines.append(
            f"{separator} {members[name]} {more}::set_bit({bit})" + format_condition(conditions)
        )
    first = [f"{members[name]} {more}::{1 << bit}" for bit, name in enumerate(bits)]
    if other is not None:
        change = "_" if counter is None else f"incr({counter})"
        lines.append(f"{separator} {other} {more}::{change}" + format_condition(may_go_on))
        first.append(f"{other} {more}::{0 if counter is None else 1 << len(bits)}")
    lark.define(f"{more}::_", "\n  | ".join(lines))
    return lark.add_rule("\n  | ".join(first), "members")


def format_condition(conditions: Sequence[str]) -> str:
    """Return the suffix of an alternative that is allowed if all conditions hold."""
    return f" %if {combine('and', conditions)}" if conditions else ""


def write_items(node: Array, write: Callable[[Node], str], separator: str) -> str:
    """Write at least one item of an array; return an empty text if it can have none."""
    most = node.max_items
    if most is None and isinstance(node.items, Nothing):
        most = len(node.prefix_items)
    if most == 0:
        return ""
    prefix = node.prefix_items if most is None else node.prefix_items[:most]
    if not prefix:
        return _write_repeated(write(node.items), separator, Counts(node.min_items, most))
    left = None if most is None else most - len(prefix)
    tail = ""
    if left != 0 and not isinstance(node.items, Nothing):
        repeat = format_repeat(max(0, node.min_items - len(prefix)), left)
        tail = f"({separator} {write(node.items)}){repeat}"
    for index in range(len(prefix) - 1, 0, -1):
        tail = f"{separator} {write(prefix[index])} {tail}"
        if index >= max(1, node.min_items):
            tail = f"({tail})?"
    return f"{write(prefix[0])} {tail}"


def write_items_with_one(
    lark: LarkBuilder, item: str, special: str, separator: str, counts: Counts
) -> str:
    """Write items of which at least one is `special`; a rule's parameter counts them."""
    if counts.least <= 1 and counts.most is None:
        return f"({item} {separator})* {special} ({separator} {item})*"
    before, after, counter = lark.reserve("before"), lark.reserve("after"), f"[0:{COUNTER_BITS}]"
    may_go_on = counts.list_maximum(counter)
    may_begin = Counts(most=counts.most and counts.most - 1).list_maximum(counter)
    lark.define(
        f"{before}::_",
        f"{special} {after}::incr({counter})\n  | {item} {separator} {before}::incr({counter})"
        + format_condition(may_begin),
    )
    lark.define(
        f"{after}::_",
        EMPTY
        + format_condition(counts.list_minimum(counter))
        + f"\n  | {separator} {item} {after}::incr({counter})"
        + format_condition(may_go_on),
    )
    return f"{before}::0"
