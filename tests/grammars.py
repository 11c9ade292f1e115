"""Grammars to test: orders in short, and walks through a grammar that end somewhere.

A walk takes one byte after the other from what the mask allows. Left to chance alone it would not
end, so it prefers what closes things, and plain letters to strange ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from dragoman.constraint.compile import compiled
from dragoman.constraint.order import Order
from dragoman.engines.masker import Following, Masker
from dragoman.errors import BadRequest
from dragoman.testing.grammars import BYTES
from dragoman.types import Tool

CLOSING = frozenset(b"\"'}])<>|/")
PLAIN = frozenset(b" \n{}[]\":,.<>/=|_-()'ABCTF" + bytes([*range(97, 123), *range(48, 58)]))
END = len(BYTES)


def offered(schemas: dict[str, Any], *, strict: bool | None = None) -> tuple[Tool, ...]:
    """Tools by their names and parameters."""
    return tuple(
        Tool(name=name, parameters=schema, strict=strict) for name, schema in schemas.items()
    )


def grammar(**order: Any) -> str:
    """The grammar of an order; tools may be given as schemas by name."""
    tools = order.pop("tools", ())
    if isinstance(tools, dict):
        tools = offered(tools)
    return _grammar(Order(tools=tools, **order))


def _grammar(order: Order) -> str:
    made = compiled(order).grammar
    assert made is not None
    return made


@cache
def _bytes() -> Masker:
    return Masker((*BYTES, b"<|end|>"), {END}, {END})


def walk(source: str, chance: random.Random, *, start: bytes = b"", steps: int = 500) -> str | None:
    """A text that the grammar allows from its beginning to its end; None where no end was found."""
    following = _bytes().follow(source)
    out = bytearray(start)
    if start:
        following.take(*start)
    for _ in range(steps):
        allowed = _allowed(following)
        if END in allowed and (len(allowed) == 1 or chance.random() < 0.15):
            return out.decode(errors="replace")
        byte = _chosen([one for one in allowed if one != END], chance)
        following.take(byte)
        out.append(byte)
    return None


def _allowed(following: Following) -> list[int]:
    bits = int.from_bytes(following.mask(), "little")
    return [token for token in range(END + 1) if bits >> token & 1]


def _chosen(allowed: Sequence[int], chance: random.Random) -> int:
    plain = [byte for byte in allowed if byte in PLAIN] or list(allowed)
    closing = [byte for byte in plain if byte in CLOSING]
    return chance.choice(closing if closing and chance.random() < 0.4 else plain)
