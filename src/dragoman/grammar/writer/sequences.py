"""Writes members and items: a separated sequence, in a fixed order or in any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.grammar.lark_builder import EMPTY, LarkBuilder, format_repeat
from dragoman.grammar.schema.nodes import Array, Node, Nothing

MAX_UNORDERED = 60  # members in any order: each needs one of a rule parameter's 64 bits


def write_sequence(
    lark: LarkBuilder,
    members: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    separator: str,
    *,
    ordered: bool = False,
) -> str:
    """Write at least one member: each at most once, the required ones exactly once.

    Any number of `other` members may come between them, or after all if members are `ordered`.
    """
    if not members:
        return EMPTY if other is None else f"{other} ({separator} {other})*"
    write = _write_in_order if ordered or len(members) > MAX_UNORDERED else _write_in_any_order
    return write(lark, members, required, other, separator)


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
) -> str:
    """Write a rule with a bit for each member, set once it is written; required ones come first."""
    members = {name: lark.add_rule(member, "part") for name, member in members.items()}
    bits = sorted(members, key=lambda name: name not in required)
    required_count = sum(name in required for name in bits)
    more = lark.reserve("more")
    lines = [f"{EMPTY} %if is_ones([0:{required_count}])" if required_count else EMPTY]
    lines += [
        f"{separator} {members[name]} {more}::set_bit({bit}) %if bit_clear({bit})"
        for bit, name in enumerate(bits)
    ]
    first = [f"{members[name]} {more}::{1 << bit}" for bit, name in enumerate(bits)]
    if other is not None:
        lines.append(f"{separator} {other} {more}::_")
        first.append(f"{other} {more}::0")
    lark.define(f"{more}::_", "\n  | ".join(lines))
    return lark.add_rule("\n  | ".join(first), "members")


def write_items(node: Array, write: Callable[[Node], str], separator: str) -> str:
    """Write at least one item of an array; return an empty text if it can have none."""
    most = node.max_items
    if most is None and isinstance(node.items, Nothing):
        most = len(node.prefix_items)
    if most == 0:
        return ""
    prefix = node.prefix_items if most is None else node.prefix_items[:most]
    if not prefix:
        item = write(node.items)
        if most == 1:
            return item
        repeat = format_repeat(max(1, node.min_items) - 1, None if most is None else most - 1)
        return f"{item} ({separator} {item}){repeat}"
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
