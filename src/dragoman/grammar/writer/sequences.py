"""Writes members and items: a separated sequence, in a fixed order or in any order."""

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

    def list_minimum(self, bits: str, *, is_counter: bool) -> list[str]:
        """List the condition that there are enough, counted by bits or by a counter."""
        function = "ge" if is_counter else "bit_count_ge"
        return [f"{function}({bits}, {self.least})"] if self.least > 1 else []

    def list_maximum(self, bits: str, *, is_counter: bool) -> list[str]:
        """List the condition that there may be one more."""
        function = "lt" if is_counter else "bit_count_lt"
        return [] if self.most is None else [f"{function}({bits}, {self.most})"]


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

    If `other` members count too, the bits after those of the members are a counter.
    """
    members = {name: lark.add_rule(member, "part") for name, member in members.items()}
    bits = sorted(members, key=lambda name: name not in required)
    required_count = sum(name in required for name in bits)
    more = lark.reserve("more")
    counter, one = f"[0:{len(bits)}]", 0
    is_counted = counts != ANY_COUNT and other is not None
    if is_counted:
        one, counter = 1 << len(bits), f"[{len(bits)}:{len(bits) + COUNTER_BITS}]"
    may_end = [f"is_ones([0:{required_count}])"] if required_count else []
    may_end += counts.list_minimum(counter, is_counter=is_counted)
    may_go_on = counts.list_maximum(counter, is_counter=is_counted)
    lines = [EMPTY + format_condition(may_end)]
    for bit, name in enumerate(bits):
        member, is_new = f"{members[name]} {more}::set_bit({bit})", f"bit_clear({bit})"
        if not is_counted:
            lines.append(f"{separator} {member}{format_condition([is_new, *may_go_on])}")
            continue
        # a parameter can be changed in one way for each symbol, so that counting needs another
        counted = lark.reserve("counted")
        lark.define(f"{counted}::_", f"{member}{format_condition([is_new])}")
        lines.append(f"{separator} {counted}::incr({counter}){format_condition(may_go_on)}")
    first = [f"{members[name]} {more}::{1 << bit | one}" for bit, name in enumerate(bits)]
    if other is not None:
        change = f"incr({counter})" if is_counted else "_"
        lines.append(f"{separator} {other} {more}::{change}" + format_condition(may_go_on))
        first.append(f"{other} {more}::{one}")
    lark.define(f"{more}::_", "\n  | ".join(lines))
    return lark.add_rule("\n  | ".join(first), "members")


def format_condition(conditions: Sequence[str]) -> str:
    """The suffix of an alternative that is allowed if all conditions hold."""
    if not conditions:
        return ""
    condition = conditions[-1]
    for earlier in reversed(conditions[:-1]):
        condition = f"and({earlier}, {condition})"
    return f" %if {condition}"


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
    """Write items of which at least one is `special`.

    The first bit of the rule's parameter is set once one is written; the others are a counter.
    """
    if counts.least <= 1 and counts.most is None:
        return f"({item} {separator})* {special} ({separator} {item})*"
    more, found = lark.reserve("more"), lark.reserve("found")
    counter = f"[1:{1 + COUNTER_BITS}]"
    # llguidance must not inline the rule, which would lose a change of the parameter
    lark.define(
        f"{found}::_", f"{special} {more}::set_bit(0) %if lt({counter}, {1 << COUNTER_BITS})"
    )
    may_go_on = format_condition(counts.list_maximum(counter, is_counter=True))
    may_end = format_condition(["bit_set(0)", *counts.list_minimum(counter, is_counter=True)])
    lines = [
        EMPTY + may_end,
        f"{separator} {item} {more}::incr({counter}){may_go_on}",
        f"{separator} {found}::incr({counter}){may_go_on}",
    ]
    lark.define(f"{more}::_", "\n  | ".join(lines))
    return lark.add_rule(f"{item} {more}::2\n  | {special} {more}::3", "items")
