r"""Describes how a text is written: which characters are plain, escaped, or forbidden.

A lexer is greedy and does not backtrack. So the written text is split into pieces: a run of
characters that stand for themselves, or one escape. In quotes, a backslash starts an escape. Up to
a marker, the first character of a marker may start it, so there a piece is a prefix of a marker and
the character that deviates from it; if that character may itself start a marker, the piece ends
before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from dragoman.grammar.regex.char_sets import (
    ALL_CHARS,
    NO_CHARS,
    CharSet,
    complement,
    contains,
    get_chars,
    intersect,
    subtract,
    union_ranges,
)
from dragoman.grammar.regex.escape import escape_regex
from dragoman.output.spec import GAP

MAX_ESCAPED_RANGES = 64  # of non-ASCII characters that may be escaped: it bounds the expression
MAX_MARKER_LENGTH = 24  # characters that are considered
CONTROL_CHARS: CharSet = ((0, 0x1F),)
NON_ASCII: CharSet = subtract(ALL_CHARS, ((0, 0x7E),))
SHORT_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\\": "\\"}


@dataclass(frozen=True)
class QuotedSyntax:
    """A text in quotation marks, with the escapes of JSON."""

    quote: str = '"'
    unescaped_controls: CharSet = NO_CHARS  # control characters that stand for themselves
    surrogate_pairs: bool = True  # characters beyond U+FFFF may be escaped
    optional_escapes: str = ""  # characters that may be escaped, but need not be

    @cached_property
    def plain(self) -> CharSet:
        """Characters that may stand for themselves."""
        escaped = union_ranges((*CONTROL_CHARS, *get_chars((self.quote, "\\"))))
        return union_ranges((*self.unescaped_controls, *complement(escaped)))

    @cached_property
    def special(self) -> CharSet:
        """Characters that are, or may be, written in another way."""
        escapable = get_chars((self.quote, "\\", *self.optional_escapes))
        return union_ranges((*CONTROL_CHARS, *escapable, *NON_ASCII))

    def escape_regexes(self, chars: CharSet) -> list[str]:
        """Return regular expressions for the escapes of some characters."""
        short = SHORT_ESCAPES | {char: char for char in self.quote + self.optional_escapes}
        escapes = [
            rf"\\{escape_regex(letter)}" for char, letter in short.items() if contains(chars, char)
        ]
        by_code = [
            *intersect(chars, CONTROL_CHARS),
            *intersect(chars, NON_ASCII)[:MAX_ESCAPED_RANGES],
        ]
        codes = [
            regex
            for low, high in by_code
            if low <= 0xFFFF
            for regex in _write_hex_range(low, min(high, 0xFFFF))
        ]
        if self.surrogate_pairs:
            codes += [
                regex
                for low, high in by_code
                for regex in _write_surrogate_pair_range(max(low, 0x10000), high)
            ]
        return escapes + ([rf"\\u(?:{'|'.join(codes)})"] if codes else [])


@dataclass(frozen=True)
class DelimitedSyntax:
    """A text that ends at a marker, and contains none of `markers`.

    `padding` is a character (a newline) that may surround the text without being part of it; it is
    always a piece of its own.
    """

    markers: tuple[str, ...]
    padding: str = ""

    @cached_property
    def forbidden(self) -> tuple[str, ...]:
        """The text that must not occur: each marker, up to where another marker could start."""
        markers = [marker.split(GAP)[0] for marker in self.markers]
        first_chars = {marker[0] for marker in markers} | set(self.padding)
        prefixes = []
        for marker in markers:
            starts = (index for index in range(1, len(marker)) if marker[index] in first_chars)
            prefixes.append(marker[: next(starts, MAX_MARKER_LENGTH)][:MAX_MARKER_LENGTH])
        return tuple(
            prefix
            for prefix in dict.fromkeys(prefixes)
            if not any(prefix != other and prefix.startswith(other) for other in prefixes)
        )

    @cached_property
    def first_chars(self) -> CharSet:
        return get_chars({text[0] for text in self.forbidden} | set(self.padding))

    @cached_property
    def plain(self) -> CharSet:
        """Characters that stand for themselves everywhere."""
        return complement(self.first_chars)

    @property
    def special(self) -> CharSet:
        return self.first_chars

    @cached_property
    def marker_prefixes(self) -> dict[str, CharSet]:
        """The proper prefixes of forbidden text, each with the characters that continue one."""
        prefixes: dict[str, set[str]] = {}
        for text in self.forbidden:
            for length in range(1, len(text)):
                prefixes.setdefault(text[:length], set()).add(text[length])
        return {prefix: get_chars(chars) for prefix, chars in prefixes.items()}

    def find_pending_prefix(self, text: str) -> str | None:
        """Return the prefix of a marker that a text ends with; None if it contains a marker."""
        if any(marker in text for marker in self.forbidden):
            return None
        lengths = range(min(len(text), MAX_MARKER_LENGTH), 0, -1)
        ends = (text[-length:] for length in lengths)
        return next((end for end in ends if end in self.marker_prefixes), "")


TextSyntax: TypeAlias = QuotedSyntax | DelimitedSyntax


def _write_hex_range(low: int, high: int, digits: int = 4) -> list[str]:
    """Return regular expressions for the numbers of a range, with `digits` hexadecimal digits."""
    if low > high:
        return []
    if digits == 0:
        return [""]
    size = 16 ** (digits - 1)
    first, last = low // size, high // size
    any_rest = "[0-9a-fA-F]" * (digits - 1)
    if low % size == 0 and high % size == size - 1:
        return [_write_hex_digit_range(first, last) + any_rest]
    if first == last:
        rests = _write_hex_range(low % size, high % size, digits - 1)
        return [_write_hex_digit_range(first, first) + rest for rest in rests]
    first_rests = _write_hex_range(low % size, size - 1, digits - 1)
    last_rests = _write_hex_range(0, high % size, digits - 1)
    return [
        *(_write_hex_digit_range(first, first) + rest for rest in first_rests),
        *([_write_hex_digit_range(first + 1, last - 1) + any_rest] if last - first > 1 else []),
        *(_write_hex_digit_range(last, last) + rest for rest in last_rests),
    ]


def _write_hex_digit_range(first: int, last: int) -> str:
    if first == last <= 9:
        return str(first)
    digits = "".join(f"{digit:x}" for digit in range(first, last + 1))
    return f"[{''.join(dict.fromkeys(digits + digits.upper()))}]"


def _write_surrogate_pair_range(low: int, high: int) -> list[str]:
    """Return the same for characters beyond U+FFFF, which are written as two escapes."""
    if low > high:
        return []
    low, high = low - 0x10000, high - 0x10000
    first, last = low // 0x400, high // 0x400
    if first == last:
        return [_write_surrogate_pair(first, last, low % 0x400, high % 0x400)]
    return [
        _write_surrogate_pair(first, first, low % 0x400, 0x3FF),
        *([_write_surrogate_pair(first + 1, last - 1, 0, 0x3FF)] if last - first > 1 else []),
        _write_surrogate_pair(last, last, 0, high % 0x400),
    ]


def _write_surrogate_pair(first: int, last: int, low: int, high: int) -> str:
    leading = "|".join(_write_hex_range(0xD800 + first, 0xD800 + last))
    trailing = "|".join(_write_hex_range(0xDC00 + low, 0xDC00 + high))
    return rf"(?:{leading})\\u(?:{trailing})"
