"""Expands a regular expression into literal markers, without running it.

It supports only parts that a marker can express: characters, optional white space, optional and
alternative parts (each alternative becomes a spelling), and named groups, whose content is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from dragoman.output.spec import GAP

MAX_SPELLINGS = 16
MAX_PATTERN = 2_000  # characters
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
SPACE = {" ", "\n", "\t", "\r", GAP}
ANCHORS = {"b", "B", "A", "Z", "z"}


class UnsupportedPattern(ValueError):
    """A pattern that no format can express."""


@dataclass(frozen=True)
class NamedGroup:
    """A named group, such as `(?P<name>…)`."""

    name: str


Piece: TypeAlias = str | NamedGroup
Pieces: TypeAlias = list[Piece]


def expand_pattern(pattern: str) -> list[Pieces]:
    """Return the spellings of a pattern."""
    if len(pattern) > MAX_PATTERN:
        raise UnsupportedPattern("the pattern is too long")
    reader = _PatternReader(pattern)
    alternatives = reader.read_alternatives()
    if reader.pos < len(pattern):
        raise UnsupportedPattern(f"{pattern!r} has unbalanced parentheses")
    return alternatives


def join_literal(pieces: Pieces) -> str:
    """Join pieces without named groups into one marker."""
    if any(isinstance(piece, NamedGroup) for piece in pieces):
        raise UnsupportedPattern("a named group is not allowed here")
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    while GAP + GAP in text:
        text = text.replace(GAP + GAP, GAP)
    return text


class _PatternReader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.pos = 0

    def read_alternatives(self, depth: int = 0) -> list[Pieces]:
        """Read alternatives, up to a closing parenthesis or the end."""
        if depth > 8:
            raise UnsupportedPattern("groups are nested too deeply")
        alternatives: list[Pieces] = []
        spellings: list[Pieces] = [[]]
        while self.pos < len(self.pattern) and self.pattern[self.pos] != ")":
            if self.pattern[self.pos] == "|":
                self.pos += 1
                alternatives, spellings = alternatives + spellings, [[]]
                continue
            options = self._apply_quantifier(self._read_atom(depth))
            spellings = [[*spelling, *option] for spelling in spellings for option in options]
            if len(spellings) + len(alternatives) > MAX_SPELLINGS:
                raise UnsupportedPattern("too many spellings")
        return alternatives + spellings

    def _apply_quantifier(self, options: list[Pieces]) -> list[Pieces]:
        """Apply a quantifier to an atom."""
        quantifier = self.pattern[self.pos : self.pos + 1]
        if quantifier not in ("?", "*", "+", "{"):
            return options
        is_space = all(piece in SPACE for spelling in options for piece in spelling)
        has_group = any(isinstance(piece, NamedGroup) for spelling in options for piece in spelling)
        if quantifier == "{" or (quantifier in ("*", "+") and not is_space):
            raise UnsupportedPattern("repetition is not supported")
        self.pos += 1
        if self.pattern[self.pos : self.pos + 1] == "?":  # a lazy quantifier
            self.pos += 1
        if is_space:
            return [[GAP]]
        return options if has_group else [*options, []]

    def _read_atom(self, depth: int) -> list[Pieces]:
        char = self.pattern[self.pos]
        self.pos += 1
        if char == "\\":
            return [self._read_escape()]
        if char == "(":
            return self._read_group(depth)
        if char in "^$":
            return [[]]
        if char in ".[":
            raise UnsupportedPattern("character classes are not supported")
        if char in "*+?{":
            raise UnsupportedPattern("a quantifier has nothing to repeat")
        return [[char]]

    def _read_escape(self) -> Pieces:
        char = self.pattern[self.pos : self.pos + 1]
        self.pos += 1
        if char == "s":
            return [GAP]
        if char in ANCHORS:
            return []
        if char in ESCAPES:
            return [ESCAPES[char]]
        if not char or char.isalnum():
            raise UnsupportedPattern("character classes are not supported")
        return [char]

    def _read_group(self, depth: int) -> list[Pieces]:
        rest = self.pattern[self.pos :]
        if rest.startswith("?P<"):
            name, closed, _ = rest[3:].partition(">")
            if not closed:
                raise UnsupportedPattern("a group is not closed")
            self._skip_group()
            return [[NamedGroup(name)]]
        if rest.startswith(("?=", "?!", "?<")):
            self._skip_group()
            return [[]]
        self.pos += 2 if rest.startswith("?:") else 0
        alternatives = self.read_alternatives(depth + 1)
        if self.pattern[self.pos : self.pos + 1] != ")":
            raise UnsupportedPattern("a group is not closed")
        self.pos += 1
        return alternatives

    def _skip_group(self) -> None:
        """Skip the rest of a group."""
        depth, in_class = 1, False
        while self.pos < len(self.pattern) and depth:
            char = self.pattern[self.pos]
            self.pos += 2 if char == "\\" else 1
            in_class = (in_class or char == "[") and char != "]"
            depth += 0 if in_class else {"(": 1, ")": -1}.get(char, 0)
        if depth:
            raise UnsupportedPattern("a group is not closed")
