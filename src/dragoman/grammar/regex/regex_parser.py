"""Parses regular expressions in the syntax of llguidance, which is that of Rust's `regex` crate.

llguidance has validated the expression before. Constructs that it accepts and that cannot be
represented here raise `UnsupportedSyntax`.
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
    get_perl_class,
    get_posix_class,
    get_unicode_category,
    intersect,
    union_ranges,
)
from dragoman.grammar.regex.regex_builder import RegexBuilder, RegexId

_QUANTIFIER = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")
_GROUP_NAME = re.compile(r"\?P?<\w+>")
_CODE_POINT = re.compile(
    r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]+)\}"
)
_CATEGORY = re.compile(r"[pP](?:([A-Z])|\{(\^?)([A-Z][a-z]?)\})")
_POSIX_CLASS = re.compile(r":(\^?)(\w+):\]")
_NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}


class UnsupportedSyntax(Exception):
    """A construct that a grammar may contain, but not the grammar of a tool's text."""

    def __init__(self, construct: str) -> None:
        super().__init__(construct)
        self.construct = construct


@dataclass(frozen=True)
class _RegexFlags:
    ignore_case: bool = False
    dot_all: bool = False  # `.` matches newlines too


class RegexParser:
    """A recursive-descent parser for one expression; `_position` is that of the next character."""

    def __init__(self, builder: RegexBuilder, source: str, flags: str = "") -> None:
        self._builder = builder
        self._source = source
        self._position = 0
        self._flags = self._apply_flags(_RegexFlags(), flags, "")

    def parse(self) -> RegexId:
        if self._source.startswith("^"):  # redundant: the expression must match the whole text
            self._position = 1
        regex = self._parse_alternatives()
        if self._position < len(self._source):
            raise UnsupportedSyntax("an unmatched `)` in a regular expression")
        return regex

    def _apply_flags(self, flags: _RegexFlags, on: str, off: str) -> _RegexFlags:
        if not set(on + off) <= set("ismu"):
            raise UnsupportedSyntax(f"the flag `{on or off}` of a regular expression")
        for name, field in (("i", "ignore_case"), ("s", "dot_all")):
            if name in on + off:
                flags = replace(flags, **{field: name in on})
        return flags

    def _peek(self) -> str:
        return self._source[self._position : self._position + 1]

    def _parse_alternatives(self) -> RegexId:
        flags, alternatives = self._flags, [self._parse_sequence()]
        while self._peek() == "|":
            self._position += 1
            alternatives.append(self._parse_sequence())
        self._flags = flags
        return self._builder.union(alternatives)

    def _parse_sequence(self) -> RegexId:
        parts = []
        while (char := self._peek()) and char not in "|)":
            if self._source[self._position :] == "$":
                self._position += 1
                break
            atom = self._parse_atom()
            if atom is not None:
                parts.append(self._parse_quantifiers(atom))
        return self._builder.concat(parts)

    def _parse_quantifiers(self, regex: RegexId) -> RegexId:
        while char := self._peek():
            counts = _QUANTIFIER.match(self._source, self._position)
            if char in "*+?":
                min_count, max_count = int(char == "+"), 1 if char == "?" else None
                self._position += 1
            elif counts is not None:
                min_count, comma, last = int(counts[1]), counts[2], counts[3]
                max_count = min_count if not comma else int(last) if last else None
                self._position = counts.end()
            else:
                break
            if self._peek() == "?":  # lazy: matches the same texts
                self._position += 1
            regex = self._builder.repeat(regex, min_count, max_count)
        return regex

    def _parse_atom(self) -> RegexId | None:
        """Parse what a quantifier may follow; return None for a group that only sets flags."""
        char = self._peek()
        self._position += 1
        match char:
            case "(":
                return self._parse_group()
            case "[":
                return self._build_char(self._parse_class())
            case ".":
                return self._builder.add_char(ALL_CHARS if self._flags.dot_all else ALL_BUT_NEWLINE)
            case "\\":
                return self._build_char(self._parse_escape())
            case "^" | "$":
                raise UnsupportedSyntax(f"`{char}` inside a regular expression")
        return self._build_char(((ord(char), ord(char)),))

    def _build_char(self, chars: CharSet) -> RegexId:
        return self._builder.add_char(fold_case(chars) if self._flags.ignore_case else chars)

    def _parse_group(self) -> RegexId | None:
        """Parse a group after its opening bracket."""
        outer_flags = self._flags
        name = _GROUP_NAME.match(self._source, self._position)
        flags = _FLAGS.match(self._source, self._position)
        if name is not None:
            self._position = name.end()
        elif flags is not None:
            self._position = flags.end()
            self._flags = self._apply_flags(outer_flags, flags[1], flags[2] or "")
            if flags[3] == ")":
                return None
        elif self._peek() == "?":
            raise UnsupportedSyntax("lookaround in a regular expression")
        regex = self._parse_alternatives()
        if self._peek() != ")":
            raise UnsupportedSyntax("an unclosed group in a regular expression")
        self._position += 1
        self._flags = outer_flags
        return regex

    def _parse_escape(self) -> CharSet:
        """Parse an escape after its backslash."""
        char, code_point = self._peek(), _CODE_POINT.match(self._source, self._position)
        category = _CATEGORY.match(self._source, self._position)
        if code_point is not None:
            self._position = code_point.end()
            code = int(next(digits for digits in code_point.groups() if digits), 16)
            return ((code, code),)
        if category is not None:
            chars = get_unicode_category(category[1] or category[3])
            is_negated = (char == "P") != bool(category[2])
            self._position = category.end()
            return complement(chars) if is_negated else chars
        self._position += 1
        if char in "wdsWDS" and char:
            return get_perl_class(char)
        if not char or (char.isalnum() and char not in _NAMED_ESCAPES):
            raise UnsupportedSyntax(f"`\\{char}` in a regular expression")
        code = ord(_NAMED_ESCAPES.get(char, char))
        return ((code, code),)

    def _parse_class(self) -> CharSet:
        """Parse a character class after its opening bracket."""
        is_negated = self._peek() == "^"
        self._position += is_negated
        ranges: list[tuple[int, int]] = []
        is_first = True
        while (char := self._peek()) != "]" or is_first:
            if not char or self._source.startswith(("&&", "--", "~~"), self._position):
                raise UnsupportedSyntax("a nested character class in a regular expression")
            ranges += self._parse_range(self._parse_class_member())
            is_first = False
        self._position += 1
        chars = intersect(union_ranges(ranges), ALL_CHARS)
        if is_negated and self._flags.ignore_case:
            chars = fold_case(chars)
        return complement(chars) if is_negated else chars

    def _parse_range(self, low: CharSet) -> CharSet:
        """Parse the end of a range that a member of a class may start."""
        is_single = len(low) == 1 and low[0][0] == low[0][1]
        after_hyphen = self._source[self._position + 1 : self._position + 2]
        if self._peek() != "-" or not is_single or after_hyphen in ("]", "-"):
            return low
        self._position += 1
        high = self._parse_class_member()
        return ((low[0][0], high[0][0]),)

    def _parse_class_member(self) -> CharSet:
        char = self._peek()
        self._position += 1
        if char == "\\":
            return self._parse_escape()
        if char == "[":
            posix = _POSIX_CLASS.match(self._source, self._position)
            if posix is None or posix[2] not in POSIX_CLASSES:
                raise UnsupportedSyntax("a nested character class in a regular expression")
            self._position = posix.end()
            return complement(get_posix_class(posix[2])) if posix[1] else get_posix_class(posix[2])
        return ((ord(char), ord(char)),)
