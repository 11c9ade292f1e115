"""Reads regular expressions as `llguidance` does, which is how Rust's `regex` does it.

What cannot stand in one there was refused before; what could, but is not understood here, is
`NotRewritten`, by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dragoman.grammar.regex.automaton import Patterns
from dragoman.grammar.regex.char_sets import (
    ALL_CHARS,
    ALL_BUT_NEWLINE,
    POSIX_CLASSES,
    CharSet,
    unicode_category,
    fold_case,
    union_ranges,
    intersect,
    complement,
    perl_class,
    posix_class,
)

_COUNT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]+)\}")
_CATEGORY = re.compile(r"[pP](?:([A-Z])|\{(\^?)([A-Z][a-z]?)\})")
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}


class NotRewritten(Exception):
    """Something that a grammar may hold, but not one of a tool's text."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclass(frozen=True)
class _Flags:
    cases: bool = False  # letters match in either case
    lines: bool = False  # `.` matches a line feed too


class Expression:
    """Reads one expression; each method leaves `_at` behind what it has read."""

    def __init__(self, patterns: Patterns, said: str, flags: str = "") -> None:
        self._patterns = patterns
        self._said = said
        self._at = 0
        self._flags = self._with(_Flags(), flags, "")

    def read(self) -> int:
        if self._said.startswith("^"):  # all of the text is matched anyhow
            self._at = 1
        found = self._options()
        if self._at < len(self._said):
            raise NotRewritten("a bracket too many in a regular expression")
        return found

    def _with(self, flags: _Flags, on: str, off: str) -> _Flags:
        if not set(on + off) <= set("ismu"):
            raise NotRewritten(f"the flag `{on or off}` of a regular expression")
        for name, field in (("i", "cases"), ("s", "lines")):
            if name in on + off:
                flags = replace(flags, **{field: name in on})
        return flags

    def _next(self) -> str:
        return self._said[self._at : self._at + 1]

    def _options(self) -> int:
        flags, found = self._flags, [self._row()]
        while self._next() == "|":
            self._at += 1
            found.append(self._row())
        self._flags = flags
        return self._patterns.any(found)

    def _row(self) -> int:
        found = []
        while (letter := self._next()) and letter not in "|)":
            if self._said[self._at :] == "$":
                self._at += 1
                break
            part = self._part()
            if part is not None:
                found.append(self._repeated(part))
        return self._patterns.row(found)

    def _repeated(self, part: int) -> int:
        while letter := self._next():
            counted = _COUNT.match(self._said, self._at)
            if letter in "*+?":
                least, most = int(letter == "+"), 1 if letter == "?" else None
                self._at += 1
            elif counted is not None:
                least, more, last = int(counted[1]), counted[2], counted[3]
                most = least if not more else int(last) if last else None
                self._at = counted.end()
            else:
                break
            if self._next() == "?":  # the same texts match
                self._at += 1
            part = self._patterns.times(part, least, most)
        return part

    def _part(self) -> int | None:
        """What may be repeated; None for what only sets flags."""
        letter = self._next()
        self._at += 1
        match letter:
            case "(":
                return self._group()
            case "[":
                return self._one(self._class())
            case ".":
                return self._patterns.one(ALL_CHARS if self._flags.lines else ALL_BUT_NEWLINE)
            case "\\":
                return self._one(self._escape())
            case "^" | "$":
                raise NotRewritten(f"`{letter}` inside a regular expression")
        return self._one(((ord(letter), ord(letter)),))

    def _one(self, letters: CharSet) -> int:
        return self._patterns.one(fold_case(letters) if self._flags.cases else letters)

    def _group(self) -> int | None:
        before = self._flags
        named = re.compile(r"\?P?<\w+>").match(self._said, self._at)
        flags = _FLAGS.match(self._said, self._at)
        if named is not None:
            self._at = named.end()
        elif flags is not None:
            self._at = flags.end()
            self._flags = self._with(before, flags[1], flags[2] or "")
            if flags[3] == ")":
                return None
        elif self._next() == "?":
            raise NotRewritten("looking around in a regular expression")
        found = self._options()
        if self._next() != ")":
            raise NotRewritten("an open bracket in a regular expression")
        self._at += 1
        self._flags = before
        return found

    def _escape(self) -> CharSet:
        """What a backslash stands for that was just read."""
        letter, coded = self._next(), _CODE.match(self._said, self._at)
        kind = _CATEGORY.match(self._said, self._at)
        if coded is not None:
            self._at = coded.end()
            code = int(next(part for part in coded.groups() if part), 16)
            return ((code, code),)
        if kind is not None:
            found = unicode_category(kind[1] or kind[3])
            opposite = (letter == "P") != bool(kind[2])
            self._at = kind.end()
            return complement(found) if opposite else found
        self._at += 1
        if letter in "wdsWDS" and letter:
            return perl_class(letter)
        if not letter or (letter.isalnum() and letter not in _NAMED):
            raise NotRewritten(f"`\\{letter}` in a regular expression")
        code = ord(_NAMED.get(letter, letter))
        return ((code, code),)

    def _class(self) -> CharSet:
        """A class whose bracket was just read."""
        opposite = self._next() == "^"
        self._at += opposite
        found: list[tuple[int, int]] = []
        first = True
        while (letter := self._next()) != "]" or first:
            if not letter or self._said.startswith(("&&", "--", "~~"), self._at):
                raise NotRewritten("a class made of classes in a regular expression")
            found += self._range(self._member())
            first = False
        self._at += 1
        letters = intersect(union_ranges(found), ALL_CHARS)
        if opposite and self._flags.cases:
            letters = fold_case(letters)
        return complement(letters) if opposite else letters

    def _range(self, low: CharSet) -> CharSet:
        """A member of a class, and the end of the range that it may begin."""
        single = len(low) == 1 and low[0][0] == low[0][1]
        after = self._said[self._at + 1 : self._at + 2]
        if self._next() != "-" or not single or after in ("]", "-"):
            return low
        self._at += 1
        high = self._member()
        return ((low[0][0], high[0][0]),)

    def _member(self) -> CharSet:
        letter = self._next()
        self._at += 1
        if letter == "\\":
            return self._escape()
        if letter == "[":
            named = re.compile(r":(\^?)(\w+):\]").match(self._said, self._at)
            if named is None or named[2] not in POSIX_CLASSES:
                raise NotRewritten("a class made of classes in a regular expression")
            self._at = named.end()
            return complement(posix_class(named[2])) if named[1] else posix_class(named[2])
        return ((ord(letter), ord(letter)),)
