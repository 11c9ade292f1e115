"""Things that come after each other, in their order or in any, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dragoman.grammar.lark_builder import EMPTY, LarkBuilder, format_repeat
from dragoman.grammar.schema.nodes import Array, Node, Nothing

MAX_UNORDERED = 60  # members that may come in any order: a rule's parameter has 64 bits


def write_sequence(
    lark: LarkBuilder,
    parts: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    lead: str,
    *,
    ordered: bool = False,
) -> str:
    """At least one of some parts, each once, those that are required surely; `lead` between two.

    Any number of `other` may come too: in between, or at the end where there is an order.
    """
    if not parts:
        return EMPTY if other is None else f"{other} ({lead} {other})*"
    write = _write_in_order if ordered or len(parts) > MAX_UNORDERED else _write_in_any_order
    return write(lark, parts, required, other, lead)


def _write_in_order(
    lark: LarkBuilder,
    parts: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    lead: str,
) -> str:
    """Two chains of rules: one for when something was written before, one for when not."""
    parts = {name: lark.add_rule(part, "part") for name, part in parts.items()}
    more = "" if other is None else f"({lead} {other})*"
    begun = lark.add_rule(more or EMPTY, "rest")
    fresh = None if other is None else lark.add_rule(f"{other} {more}", "rest")
    for name, part in reversed(list(parts.items())):
        options = [f"{part} {begun}"]
        if name in required:
            fresh = lark.add_rule(options[0], "rest")
            begun = lark.add_rule(f"{lead} {part} {begun}", "rest")
            continue
        options += [] if fresh is None else [fresh]
        fresh = lark.add_rule(" | ".join(options), "rest")
        begun = lark.add_rule(f"{lead} {part} {begun} | {begun}", "rest")
    return fresh or EMPTY


def _write_in_any_order(
    lark: LarkBuilder,
    parts: Mapping[str, str],
    required: frozenset[str],
    other: str | None,
    lead: str,
) -> str:
    """A rule with a bit for each part, set when it was written; required ones have the first."""
    parts = {name: lark.add_rule(part, "part") for name, part in parts.items()}
    bits = sorted(parts, key=lambda name: name not in required)
    needed = sum(name in required for name in bits)
    more = lark.reserve("more")
    done = f"{EMPTY} %if is_ones([0:{needed}])" if needed else EMPTY
    lines = [done]
    lines += [
        f"{lead} {parts[name]} {more}::set_bit({bit}) %if bit_clear({bit})"
        for bit, name in enumerate(bits)
    ]
    first = [f"{parts[name]} {more}::{1 << bit}" for bit, name in enumerate(bits)]
    if other is not None:
        lines.append(f"{lead} {other} {more}::_")
        first.append(f"{other} {more}::0")
    lark.define(f"{more}::_", "\n  | ".join(lines))
    return lark.add_rule("\n  | ".join(first), "members")


def write_items(node: Array, write: Callable[[Node], str], lead: str) -> str:
    """The items of a list that has one at least, `lead` between two; empty if it can have none."""
    most = node.max_items
    if most is None and isinstance(node.items, Nothing):
        most = len(node.prefix_items)
    first = node.prefix_items if most is None else node.prefix_items[:most]
    if most == 0:
        return ""
    if not first:
        more = None if most is None else most - 1
        following = f"({lead} {write(node.items)}){format_repeat(max(1, node.min_items) - 1, more)}"
        return write(node.items) if more == 0 else f"{write(node.items)} {following}"
    left = None if most is None else most - len(first)
    tail = ""
    if left != 0 and not isinstance(node.items, Nothing):
        least = max(0, node.min_items - len(first))
        tail = f"({lead} {write(node.items)}){format_repeat(least, left)}"
    for at in range(len(first) - 1, 0, -1):
        tail = f"{lead} {write(first[at])} {tail}"
        if at >= max(1, node.min_items):
            tail = f"({tail})?"
    return f"{write(first[0])} {tail}"
