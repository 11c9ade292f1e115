"""Sets of letters, as rows of ranges: what a class of a regular expression stands for.

What a class means is what `llguidance` takes it for: classes go by Unicode, `.` is all but a line
feed. No set holds half of a surrogate pair, since no text does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

CharSet: TypeAlias = tuple[tuple[int, int], ...]  # first and last of each range, in order

MAX_CODE_POINT, MAX_ASSIGNED = (
    0x10FFFF,
    0x33FFF,
)  # of all letters, and of those that are more than a number
NO_CHARS: CharSet = ()
ALL_CHARS: CharSet = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
ALL_BUT_NEWLINE: CharSet = ((0, 9), (11, 0xD7FF), (0xE000, MAX_CODE_POINT))  # all but a line feed
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    chr(code) for code in range(0x2000, 0x200B)
)
POSIX_CLASSES = {
    "alnum": "09azAZ",
    "alpha": "azAZ",
    "ascii": "\x00\x7f",
    "blank": "  \t\t",
    "cntrl": "\x00\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09azAZ__",
    "xdigit": "09afAF",
}
# letters of words that no category of letters has
EXTRA_WORD_CHARS: CharSet = (
    (0x200C, 0x200D),
    (0x24B6, 0x24E9),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)


def union_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """All letters of some ranges."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def intersect(left: CharSet, right: CharSet) -> CharSet:
    """What is in both."""
    found, at = [], 0
    for low, high in left:
        while at and right[at - 1][1] >= low:
            at -= 1
        while at < len(right) and right[at][1] < low:
            at += 1
        while at < len(right) and right[at][0] <= high:
            found.append((max(low, right[at][0]), min(high, right[at][1])))
            at += 1
    return tuple(found)


def complement(letters: CharSet) -> CharSet:
    """All that is not in it."""
    found, at = [], 0
    for low, high in letters:
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    if at <= MAX_CODE_POINT:
        found.append((at, MAX_CODE_POINT))
    return intersect(tuple(found), ALL_CHARS)


def subtract(left: CharSet, right: CharSet) -> CharSet:
    return intersect(left, complement(right))


def contains(letters: CharSet, letter: str) -> bool:
    return any(low <= ord(letter) <= high for low, high in letters)


def chars_of(text: Iterable[str]) -> CharSet:
    return union_ranges((ord(letter), ord(letter)) for letter in text)


def fold_case(letters: CharSet) -> CharSet:
    """The same in either case."""
    more = [(code, code) for group in _case_groups() if _overlaps(letters, group) for code in group]
    return union_ranges((*letters, *more))


def _overlaps(letters: CharSet, group: Iterable[int]) -> bool:
    return any(low <= code <= high for code in group for low, high in letters)


@lru_cache(maxsize=1)
def _case_groups() -> tuple[frozenset[int], ...]:
    """Letters that differ in nothing but case."""
    groups: dict[str, set[int]] = {}
    for code in range(MAX_ASSIGNED):
        letter = chr(code)
        lower = letter.lower()
        if lower != letter or letter.upper() != letter:
            for key in {lower, letter.upper().lower(), letter.casefold()}:
                if len(key) == 1:
                    groups.setdefault(key, set()).update((code, ord(key)))
    return tuple(frozenset(group) for group in groups.values() if len(group) > 1)


@lru_cache(maxsize=64)
def unicode_category(names: str) -> CharSet:
    """Letters of some general categories, given by their one or two letters and spaces."""
    wanted = tuple(names.split())
    found: list[tuple[int, int]] = []
    start = None
    last = MAX_CODE_POINT if "C" in names else MAX_ASSIGNED
    for code in range(last + 2):
        inside = code <= last and unicodedata.category(chr(code)).startswith(wanted)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            found.append((start, code - 1))
            start = None
    if "M" in wanted and last == MAX_ASSIGNED:
        found.append((0xE0100, 0xE01EF))  # far beyond all others
    return intersect(tuple(found), ALL_CHARS)


@lru_cache(maxsize=1)
def word_chars() -> CharSet:
    return union_ranges((*unicode_category("L M Nd Nl Pc"), *EXTRA_WORD_CHARS))


def perl_class(letter: str) -> CharSet:
    r"""What `\w`, `\d` and `\s` stand for, and the same in capitals for the opposite."""
    match letter.lower():
        case "w":
            found = word_chars()
        case "d":
            found = unicode_category("Nd")
        case _:
            found = chars_of(WHITESPACE)
    return complement(found) if letter.isupper() else found


def posix_class(name: str) -> CharSet:
    ends = POSIX_CLASSES[name]
    return union_ranges((ord(ends[at]), ord(ends[at + 1])) for at in range(0, len(ends), 2))


def to_regex_class(letters: CharSet) -> str:
    """A class of a regular expression."""
    if len(letters) == 1 and letters[0][0] == letters[0][1]:
        return _format_char(letters[0][0])
    ranges = (
        _format_char(a) if a == b else f"{_format_char(a)}-{_format_char(b)}" for a, b in letters
    )
    return f"[{''.join(ranges)}]"


def _format_char(code: int) -> str:
    letter = chr(code)
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{code:x}}}"
