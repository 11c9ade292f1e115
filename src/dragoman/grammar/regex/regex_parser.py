"""Reads regular expressions as `llguidance` does, which is how Rust's `regex` does it.

What cannot stand in one there was refused before; what could, but is not understood here, is
`NotRewritten`, by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dragoman.grammar.regex.char_sets import (
    ALL_BUT_NEWLINE,
    ALL_CHARS,
    POSIX_CLASSES,
    CharSet,
    complement,
    fold_case,
    intersect,
    perl_class,
    posix_class,
    unicode_category,
    union_ranges,
)
from dragoman.grammar.regex.regex_builder import RegexBuilder

_QUANTIFIER = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_CODE_POINT = re.compile(
    r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]+)\}"
)
_CATEGORY = re.compile(r"[pP](?:([A-Z])|\{(\^?)([A-Z][a-z]?)\})")
_NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}


class UnsupportedSyntax(Exception):
    """Something that a grammar may hold, but not one of a tool's text."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.construct = what


@dataclass(frozen=True)
class _RegexFlags:
    ignore_case: bool = False  # letters match in either case
    dot_all: bool = False  # `.` matches a line feed too


class RegexParser:
    """Reads one expression; each method leaves `_at` behind what it has read."""

    def __init__(self, builder: RegexBuilder, source: str, flags: str = "") -> None:
        self._builder = builder
        self._source = source
        self._position = 0
        self._flags = self._apply_flags(_RegexFlags(), flags, "")

    def parse(self) -> int:
        if self._source.startswith("^"):  # all of the text is matched anyhow
            self._position = 1
        found = self._parse_alternatives()
        if self._position < len(self._source):
            raise UnsupportedSyntax("a bracket too many in a regular expression")
        return found

    def _apply_flags(self, flags: _RegexFlags, on: str, off: str) -> _RegexFlags:
        if not set(on + off) <= set("ismu"):
            raise UnsupportedSyntax(f"the flag `{on or off}` of a regular expression")
        for name, field in (("i", "ignore_case"), ("s", "dot_all")):
            if name in on + off:
                flags = replace(flags, **{field: name in on})
        return flags

    def _peek(self) -> str:
        return self._source[self._position : self._position + 1]

    def _parse_alternatives(self) -> int:
        flags, found = self._flags, [self._parse_sequence()]
        while self._peek() == "|":
            self._position += 1
            found.append(self._parse_sequence())
        self._flags = flags
        return self._builder.union(found)

    def _parse_sequence(self) -> int:
        found = []
        while (letter := self._peek()) and letter not in "|)":
            if self._source[self._position :] == "$":
                self._position += 1
                break
            part = self._parse_atom()
            if part is not None:
                found.append(self._parse_quantifiers(part))
        return self._builder.concat(found)

    def _parse_quantifiers(self, part: int) -> int:
        while letter := self._peek():
            counted = _QUANTIFIER.match(self._source, self._position)
            if letter in "*+?":
                least, most = int(letter == "+"), 1 if letter == "?" else None
                self._position += 1
            elif counted is not None:
                least, more, last = int(counted[1]), counted[2], counted[3]
                most = least if not more else int(last) if last else None
                self._position = counted.end()
            else:
                break
            if self._peek() == "?":  # the same texts match
                self._position += 1
            part = self._builder.repeat(part, least, most)
        return part

    def _parse_atom(self) -> int | None:
        """What may be repeated; None for what only sets flags."""
        letter = self._peek()
        self._position += 1
        match letter:
            case "(":
                return self._parse_group()
            case "[":
                return self._build_char(self._parse_class())
            case ".":
                return self._builder.char(ALL_CHARS if self._flags.dot_all else ALL_BUT_NEWLINE)
            case "\\":
                return self._build_char(self._parse_escape())
            case "^" | "$":
                raise UnsupportedSyntax(f"`{letter}` inside a regular expression")
        return self._build_char(((ord(letter), ord(letter)),))

    def _build_char(self, letters: CharSet) -> int:
        return self._builder.char(fold_case(letters) if self._flags.ignore_case else letters)

    def _parse_group(self) -> int | None:
        before = self._flags
        named = re.compile(r"\?P?<\w+>").match(self._source, self._position)
        flags = _FLAGS.match(self._source, self._position)
        if named is not None:
            self._position = named.end()
        elif flags is not None:
            self._position = flags.end()
            self._flags = self._apply_flags(before, flags[1], flags[2] or "")
            if flags[3] == ")":
                return None
        elif self._peek() == "?":
            raise UnsupportedSyntax("looking around in a regular expression")
        found = self._parse_alternatives()
        if self._peek() != ")":
            raise UnsupportedSyntax("an open bracket in a regular expression")
        self._position += 1
        self._flags = before
        return found

    def _parse_escape(self) -> CharSet:
        """What a backslash stands for that was just read."""
        letter, coded = self._peek(), _CODE_POINT.match(self._source, self._position)
        kind = _CATEGORY.match(self._source, self._position)
        if coded is not None:
            self._position = coded.end()
            code = int(next(part for part in coded.groups() if part), 16)
            return ((code, code),)
        if kind is not None:
            found = unicode_category(kind[1] or kind[3])
            opposite = (letter == "P") != bool(kind[2])
            self._position = kind.end()
            return complement(found) if opposite else found
        self._position += 1
        if letter in "wdsWDS" and letter:
            return perl_class(letter)
        if not letter or (letter.isalnum() and letter not in _NAMED_ESCAPES):
            raise UnsupportedSyntax(f"`\\{letter}` in a regular expression")
        code = ord(_NAMED_ESCAPES.get(letter, letter))
        return ((code, code),)

    def _parse_class(self) -> CharSet:
        """A class whose bracket was just read."""
        opposite = self._peek() == "^"
        self._position += opposite
        found: list[tuple[int, int]] = []
        first = True
        while (letter := self._peek()) != "]" or first:
            if not letter or self._source.startswith(("&&", "--", "~~"), self._position):
                raise UnsupportedSyntax("a class made of classes in a regular expression")
            found += self._parse_range(self._parse_class_member())
            first = False
        self._position += 1
        letters = intersect(union_ranges(found), ALL_CHARS)
        if opposite and self._flags.ignore_case:
            letters = fold_case(letters)
        return complement(letters) if opposite else letters

    def _parse_range(self, low: CharSet) -> CharSet:
        """A member of a class, and the end of the range that it may begin."""
        single = len(low) == 1 and low[0][0] == low[0][1]
        after = self._source[self._position + 1 : self._position + 2]
        if self._peek() != "-" or not single or after in ("]", "-"):
            return low
        self._position += 1
        high = self._parse_class_member()
        return ((low[0][0], high[0][0]),)

    def _parse_class_member(self) -> CharSet:
        letter = self._peek()
        self._position += 1
        if letter == "\\":
            return self._parse_escape()
        if letter == "[":
            named = re.compile(r":(\^?)(\w+):\]").match(self._source, self._position)
            if named is None or named[2] not in POSIX_CLASSES:
                raise UnsupportedSyntax("a class made of classes in a regular expression")
            self._position = named.end()
            return complement(posix_class(named[2])) if named[1] else posix_class(named[2])
        return ((ord(letter), ord(letter)),)
