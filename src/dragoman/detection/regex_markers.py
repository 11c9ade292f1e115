"""Reads a regular expression as marks, without ever running it.

Only what a mark can say is understood: letters, white space that may be there or not, optional and
alternative parts (each way becomes a spelling), and named groups, whose inside does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dragoman.output.spec import GAP

MOST = 16  # spellings
LONGEST = 2_000  # letters of a pattern
ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
SPACE = {" ", "\n", "\t", "\r", GAP}
NOWHERE = {"b", "B", "A", "Z", "z"}


class Unsayable(ValueError):
    """Something that no format can say."""


@dataclass(frozen=True)
class Capture:
    """A named group."""

    name: str


Piece: TypeAlias = str | Capture
Pieces: TypeAlias = list[Piece]


def pieces(pattern: str) -> list[Pieces]:
    """The spellings of a pattern."""
    if len(pattern) > LONGEST:
        raise Unsayable("a pattern that is too long")
    reader = _Reader(pattern)
    found = reader.ways()
    if reader.at < len(pattern):
        raise Unsayable(f"{pattern!r} is out of balance")
    return found


def literal(found: Pieces) -> str:
    """Pieces without captures as one mark."""
    if any(isinstance(one, Capture) for one in found):
        raise Unsayable("a name where none can be")
    text = "".join(one for one in found if isinstance(one, str))
    while GAP + GAP in text:
        text = text.replace(GAP + GAP, GAP)
    return text


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def ways(self, depth: int = 0) -> list[Pieces]:
        """Alternatives, up to a closing bracket or the end."""
        if depth > 8:
            raise Unsayable("groups that are nested too deeply")
        found: list[Pieces] = []
        ways: list[Pieces] = [[]]
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            if self.pattern[self.at] == "|":
                self.at += 1
                found, ways = found + ways, [[]]
                continue
            options = self._repeated(self._atom(depth))
            ways = [[*way, *option] for way in ways for option in options]
            if len(ways) + len(found) > MOST:
                raise Unsayable("too many spellings")
        return found + ways

    def _repeated(self, options: list[Pieces]) -> list[Pieces]:
        """What a quantifier makes of an atom."""
        mark = self.pattern[self.at : self.at + 1]
        if mark not in ("?", "*", "+", "{"):
            return options
        spaced = all(one in SPACE for way in options for one in way)
        captured = any(isinstance(one, Capture) for way in options for one in way)
        if mark == "{" or (mark in ("*", "+") and not spaced):
            raise Unsayable("something that is repeated")
        self.at += 1
        if self.pattern[self.at : self.at + 1] == "?":  # as little as possible
            self.at += 1
        if spaced:
            return [[GAP]]
        return options if captured else [*options, []]

    def _atom(self, depth: int) -> list[Pieces]:
        letter = self.pattern[self.at]
        self.at += 1
        if letter == "\\":
            return [self._escaped()]
        if letter == "(":
            return self._group(depth)
        if letter in "^$":
            return [[]]
        if letter in ".[":
            raise Unsayable("letters that may be any")
        if letter in "*+?{":
            raise Unsayable("a pattern that is out of order")
        return [[letter]]

    def _escaped(self) -> Pieces:
        letter = self.pattern[self.at : self.at + 1]
        self.at += 1
        if letter == "s":
            return [GAP]
        if letter in NOWHERE:
            return []
        if letter in ESCAPED:
            return [ESCAPED[letter]]
        if not letter or letter.isalnum():
            raise Unsayable("letters that may be any")
        return [letter]

    def _group(self, depth: int) -> list[Pieces]:
        rest = self.pattern[self.at :]
        if rest.startswith("?P<"):
            name, closed, _ = rest[3:].partition(">")
            if not closed:
                raise Unsayable("a group without an end")
            self._skip()
            return [[Capture(name)]]
        if rest.startswith(("?=", "?!", "?<")):
            self._skip()
            return [[]]
        self.at += 2 if rest.startswith("?:") else 0
        found = self.ways(depth + 1)
        if self.pattern[self.at : self.at + 1] != ")":
            raise Unsayable("a group without an end")
        self.at += 1
        return found

    def _skip(self) -> None:
        """Over the rest of a group, whatever is in it."""
        depth, inside = 1, False
        while self.at < len(self.pattern) and depth:
            letter = self.pattern[self.at]
            self.at += 2 if letter == "\\" else 1
            inside = (inside or letter == "[") and letter != "]"
            depth += 0 if inside else {"(": 1, ")": -1}.get(letter, 0)
        if depth:
            raise Unsayable("a group without an end")
