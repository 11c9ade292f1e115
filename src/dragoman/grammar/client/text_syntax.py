r"""How the letters of a text are written: as they are, as escapes, or not at all.

A lexer takes what it can get and never goes back. So what is written in more than one letter, or
might be the beginning of something else, begins a piece of its own: a piece is a run of letters
that stand for themselves, or one escape. Between quotes a backslash begins an escape. Between marks
the first letter of a mark may begin it, so there a piece is the beginning of a mark and the letter
by which it is none; where that letter might itself begin a mark, the piece ends before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dragoman.grammar.regex.char_sets import (
    ALL_CHARS,
    NO_CHARS,
    CharSet,
    chars_of,
    complement,
    contains,
    intersect,
    subtract,
    union_ranges,
)
from dragoman.grammar.regex.escape import escape_regex
from dragoman.output.spec import GAP

MAX_ESCAPED_RANGES = (
    64  # of letters beyond ASCII that may be written as escapes: an expression has an end
)
MAX_MARKER_LENGTH = 24  # letters of a mark
CONTROL_CHARS: CharSet = ((0, 0x1F),)
NON_ASCII: CharSet = subtract(ALL_CHARS, ((0, 0x7E),))
SHORT_ESCAPES = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f", "\\": "\\"}


@dataclass(frozen=True)
class QuotedSyntax:
    """A text between quotation marks, with escapes as JSON has them."""

    quote: str = '"'
    unescaped_controls: CharSet = NO_CHARS  # control characters that stand for themselves
    surrogate_pairs: bool = True  # letters beyond the first plane may be escaped
    optional_escapes: str = ""  # letters that may be escaped, and need not be

    @cached_property
    def plain(self) -> CharSet:
        """Letters that stand for themselves."""
        return union_ranges(
            (
                *self.unescaped_controls,
                *complement(union_ranges((*CONTROL_CHARS, *chars_of((self.quote, "\\"))))),
            )
        )

    @cached_property
    def special(self) -> CharSet:
        """Letters that do not, or not always."""
        return union_ranges(
            (*CONTROL_CHARS, *chars_of((self.quote, "\\", *self.optional_escapes)), *NON_ASCII)
        )

    def escape_regexes(self, letters: CharSet) -> list[str]:
        """Regular expressions of the escapes that stand for some letters."""
        short = SHORT_ESCAPES | {letter: letter for letter in self.quote + self.optional_escapes}
        said = [rf"\\{escape_regex(way)}" for one, way in short.items() if contains(letters, one)]
        coded = [
            *intersect(letters, CONTROL_CHARS),
            *intersect(letters, NON_ASCII)[:MAX_ESCAPED_RANGES],
        ]
        first = [(low, min(high, 0xFFFF)) for low, high in coded if low <= 0xFFFF]
        codes = [way for low, high in first for way in _hex_range(low, high)]
        if self.surrogate_pairs:
            codes += [
                way for low, high in coded for way in _surrogate_pair_range(max(low, 0x10000), high)
            ]
        return said + ([rf"\\u(?:{'|'.join(codes)})"] if codes else [])


@dataclass(frozen=True)
class DelimitedSyntax:
    """A text up to a mark; it holds none of `marks`."""

    markers: tuple[str, ...]
    padding: str = ""  # a letter that may stand around a text and is none of it: always a piece

    @cached_property
    def forbidden(self) -> tuple[str, ...]:
        """As much of each mark as can be told from others, and which no text may hold then."""
        every = [mark.split(GAP)[0] for mark in self.markers]
        firsts = {mark[0] for mark in every} | set(self.padding)
        found = []
        for mark in every:
            inner = (at for at in range(1, len(mark)) if mark[at] in firsts)
            found.append(mark[: next(inner, MAX_MARKER_LENGTH)][:MAX_MARKER_LENGTH])
        return tuple(
            one
            for one in dict.fromkeys(found)
            if not any(one != more and one.startswith(more) for more in found)
        )

    @cached_property
    def first_chars(self) -> CharSet:
        return chars_of({mark[0] for mark in self.forbidden} | set(self.padding))

    @cached_property
    def plain(self) -> CharSet:
        return complement(self.first_chars)

    @property
    def special(self) -> CharSet:
        return self.first_chars

    @cached_property
    def marker_prefixes(self) -> dict[str, CharSet]:
        """Beginnings of marks, each with the letters that go on with one."""
        found: dict[str, set[str]] = {}
        for mark in self.forbidden:
            for size in range(1, len(mark)):
                found.setdefault(mark[:size], set()).add(mark[size])
        return {text: chars_of(letters) for text, letters in found.items()}

    def pending_prefix(self, text: str) -> str | None:
        """The beginning of a mark that a text ends with, or nothing; None if it holds a mark."""
        if any(mark in text for mark in self.forbidden):
            return None
        sizes = range(min(len(text), MAX_MARKER_LENGTH), 0, -1)
        return next((text[-size:] for size in sizes if text[-size:] in self.marker_prefixes), "")


def _hex_range(low: int, high: int, digits: int = 4) -> list[str]:
    """Regular expressions of all numbers in a range, in as many hexadecimal digits."""
    if low > high:
        return []
    if digits == 0:
        return [""]
    size = 16 ** (digits - 1)
    first, last = low // size, high // size
    rest = "[0-9a-fA-F]" * (digits - 1)
    if low % size == 0 and high % size == size - 1:
        return [_hex_digit_range(first, last) + rest]
    if first == last:
        return [
            _hex_digit_range(first, first) + one
            for one in _hex_range(low % size, high % size, digits - 1)
        ]
    start = [
        _hex_digit_range(first, first) + one for one in _hex_range(low % size, size - 1, digits - 1)
    ]
    end = [_hex_digit_range(last, last) + one for one in _hex_range(0, high % size, digits - 1)]
    middle = [_hex_digit_range(first + 1, last - 1) + rest] if last - first > 1 else []
    return [*start, *middle, *end]


def _hex_digit_range(first: int, last: int) -> str:
    if first == last <= 9:
        return str(first)
    letters = "".join(f"{digit:x}" for digit in range(first, last + 1))
    return f"[{''.join(dict.fromkeys(letters + letters.upper()))}]"


def _surrogate_pair_range(low: int, high: int) -> list[str]:
    """The same for letters beyond the first plane, which are two escapes."""
    if low > high:
        return []
    low, high = low - 0x10000, high - 0x10000
    first, last = low // 0x400, high // 0x400
    if first == last:
        return _surrogate_pair(first, last, low % 0x400, high % 0x400)
    start = _surrogate_pair(first, first, low % 0x400, 0x3FF)
    end = _surrogate_pair(last, last, 0, high % 0x400)
    return [
        *start,
        *(_surrogate_pair(first + 1, last - 1, 0, 0x3FF) if last - first > 1 else []),
        *end,
    ]


def _surrogate_pair(first: int, last: int, low: int, high: int) -> list[str]:
    before = "|".join(_hex_range(0xD800 + first, 0xD800 + last))
    after = "|".join(_hex_range(0xDC00 + low, 0xDC00 + high))
    return [rf"(?:{before})\\u(?:{after})"]
