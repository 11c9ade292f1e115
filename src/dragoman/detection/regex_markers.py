"""Reads a regular expression as markers, without ever running it.

Only what a marker can say is understood: characters, white space that may be there or not, optional and
alternative parts (each way becomes a spelling), and named groups, whose inside does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dragoman.output.spec import GAP

MAX_SPELLINGS = 16  # spellings
MAX_PATTERN = 2_000  # characters of a pattern
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
SPACE = {" ", "\n", "\t", "\r", GAP}
ANCHORS = {"b", "B", "A", "Z", "z"}


class UnsupportedPattern(ValueError):
    """Something that no format can say."""


@dataclass(frozen=True)
class NamedGroup:
    """A named group."""

    name: str


Piece: TypeAlias = str | NamedGroup
Pieces: TypeAlias = list[Piece]


def expand_pattern(pattern: str) -> list[Pieces]:
    """The spellings of a pattern."""
    if len(pattern) > MAX_PATTERN:
        raise UnsupportedPattern("a pattern that is too long")
    reader = _PatternReader(pattern)
    match = reader.read_alternatives()
    if reader.at < len(pattern):
        raise UnsupportedPattern(f"{pattern!r} is out of balance")
    return match


def join_literal(match: Pieces) -> str:
    """Pieces without captures as one marker."""
    if any(isinstance(one, NamedGroup) for one in match):
        raise UnsupportedPattern("a name where none can be")
    text = "".join(one for one in match if isinstance(one, str))
    while GAP + GAP in text:
        text = text.replace(GAP + GAP, GAP)
    return text


class _PatternReader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0

    def read_alternatives(self, depth: int = 0) -> list[Pieces]:
        """Alternatives, up to a closing bracket or the end."""
        if depth > 8:
            raise UnsupportedPattern("groups that are nested too deeply")
        match: list[Pieces] = []
        ways: list[Pieces] = [[]]
        while self.at < len(self.pattern) and self.pattern[self.at] != ")":
            if self.pattern[self.at] == "|":
                self.at += 1
                match, ways = match + ways, [[]]
                continue
            options = self._apply_quantifier(self._read_atom(depth))
            ways = [[*way, *option] for way in ways for option in options]
            if len(ways) + len(match) > MAX_SPELLINGS:
                raise UnsupportedPattern("too many spellings")
        return match + ways

    def _apply_quantifier(self, options: list[Pieces]) -> list[Pieces]:
        """What a quantifier makes of an atom."""
        marker = self.pattern[self.at : self.at + 1]
        if marker not in ("?", "*", "+", "{"):
            return options
        spaced = all(one in SPACE for way in options for one in way)
        captured = any(isinstance(one, NamedGroup) for way in options for one in way)
        if marker == "{" or (marker in ("*", "+") and not spaced):
            raise UnsupportedPattern("something that is repeated")
        self.at += 1
        if self.pattern[self.at : self.at + 1] == "?":  # as little as possible
            self.at += 1
        if spaced:
            return [[GAP]]
        return options if captured else [*options, []]

    def _read_atom(self, depth: int) -> list[Pieces]:
        letter = self.pattern[self.at]
        self.at += 1
        if letter == "\\":
            return [self._read_escape()]
        if letter == "(":
            return self._read_group(depth)
        if letter in "^$":
            return [[]]
        if letter in ".[":
            raise UnsupportedPattern("characters that may be any")
        if letter in "*+?{":
            raise UnsupportedPattern("a pattern that is out of order")
        return [[letter]]

    def _read_escape(self) -> Pieces:
        letter = self.pattern[self.at : self.at + 1]
        self.at += 1
        if letter == "s":
            return [GAP]
        if letter in ANCHORS:
            return []
        if letter in ESCAPES:
            return [ESCAPES[letter]]
        if not letter or letter.isalnum():
            raise UnsupportedPattern("characters that may be any")
        return [letter]

    def _read_group(self, depth: int) -> list[Pieces]:
        rest = self.pattern[self.at :]
        if rest.startswith("?P<"):
            name, closed, _ = rest[3:].partition(">")
            if not closed:
                raise UnsupportedPattern("a group without an end")
            self._skip_group()
            return [[NamedGroup(name)]]
        if rest.startswith(("?=", "?!", "?<")):
            self._skip_group()
            return [[]]
        self.at += 2 if rest.startswith("?:") else 0
        match = self.read_alternatives(depth + 1)
        if self.pattern[self.at : self.at + 1] != ")":
            raise UnsupportedPattern("a group without an end")
        self.at += 1
        return match

    def _skip_group(self) -> None:
        """Over the rest of a group, whatever is in it."""
        depth, inside = 1, False
        while self.at < len(self.pattern) and depth:
            letter = self.pattern[self.at]
            self.at += 2 if letter == "\\" else 1
            inside = (inside or letter == "[") and letter != "]"
            depth += 0 if inside else {"(": 1, ")": -1}.get(letter, 0)
        if depth:
            raise UnsupportedPattern("a group without an end")
