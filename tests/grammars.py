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
PLAIN = frozenset(range(32, 127))
LIKELY = PLAIN - frozenset(b" 0123456789+-eE{[\\")  # what does not make things longer
QUOTES = ('"', "'") * 4
WIDE = 60  # bytes; where that many are allowed, a text goes on
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


class Walk:
    """A way through a grammar; `words` are what it likes to write, letters alone do not close."""

    def __init__(self, source: str, chance: random.Random, words: Iterable[str] = ()) -> None:
        self._following = _bytes().follow(source)
        self._chance = chance
        self._words = [word.encode() for word in sorted((*words, *QUOTES))]
        self._spelling = b""
        self.said = bytearray()

    def go(self, start: str = "", steps: int = 400) -> str | None:
        """The text, once it has come to an end; None where it does not, or breaks a letter."""
        for byte in start.encode():
            self._take(byte)
        for step in range(steps):
            allowed, tired = self._allowed(), step / steps
            if END in allowed and (len(allowed) == 1 or self._chance.random() < 0.4 + tired):
                break
            self._take(self._chosen(allowed - {END}, tired))
        else:
            return None
        try:
            return self.said.decode()
        except UnicodeDecodeError:
            return None

    def _take(self, byte: int) -> None:
        self._following.take(byte)
        self.said.append(byte)

    def _allowed(self) -> set[int]:
        bits = int.from_bytes(self._following.mask(), "little")
        return {token for token in range(END + 1) if bits >> token & 1}

    def _chosen(self, allowed: set[int], tired: float) -> int:
        chance = self._chance
        if not self._spelling and len(allowed) > WIDE and chance.random() < 0.2 + tired:
            self._spelling = chance.choice(self._words)
        byte, self._spelling = next(iter(self._spelling), None), self._spelling[1:]
        if byte in allowed:
            return byte
        self._spelling = b""
        closing = sorted(allowed & CLOSING)
        if closing and len(allowed) <= WIDE and chance.random() < 0.4 + tired:
            return chance.choice(closing)
        return chance.choice(sorted(allowed & LIKELY) or sorted(allowed & PLAIN) or sorted(allowed))
