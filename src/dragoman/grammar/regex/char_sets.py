"""Sets of characters as sorted ranges of code points: what a class of a regular expression matches.

Classes mean what they mean to llguidance: they follow Unicode, and `.` is everything but a newline.
No set contains surrogates, since no text does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

CharSet: TypeAlias = tuple[tuple[int, int], ...]  # first and last code point of each range

MAX_CODE_POINT = 0x10FFFF
MAX_ASSIGNED = 0x33FFF  # beyond, only variation selectors and private use are assigned
NO_CHARS: CharSet = ()
ALL_CHARS: CharSet = ((0, 0xD7FF), (0xE000, MAX_CODE_POINT))
ALL_BUT_NEWLINE: CharSet = ((0, 9), (11, 0xD7FF), (0xE000, MAX_CODE_POINT))
WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    chr(code) for code in range(0x2000, 0x200B)
)
POSIX_CLASSES = {  # pairs of first and last characters
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
# word characters that are in no category of letters
EXTRA_WORD_CHARS: CharSet = (
    (0x200C, 0x200D),
    (0x24B6, 0x24E9),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)


def union_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Return the set of all characters in some ranges, which may overlap."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def intersect(left: CharSet, right: CharSet) -> CharSet:
    common, index = [], 0
    for low, high in left:
        while index and right[index - 1][1] >= low:
            index -= 1
        while index < len(right) and right[index][1] < low:
            index += 1
        while index < len(right) and right[index][0] <= high:
            common.append((max(low, right[index][0]), min(high, right[index][1])))
            index += 1
    return tuple(common)


def complement(chars: CharSet) -> CharSet:
    gaps, next_code = [], 0
    for low, high in chars:
        if low > next_code:
            gaps.append((next_code, low - 1))
        next_code = high + 1
    if next_code <= MAX_CODE_POINT:
        gaps.append((next_code, MAX_CODE_POINT))
    return intersect(tuple(gaps), ALL_CHARS)


def subtract(left: CharSet, right: CharSet) -> CharSet:
    return intersect(left, complement(right))


def contains(chars: CharSet, char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in chars)


def get_chars(text: Iterable[str]) -> CharSet:
    return union_ranges((ord(char), ord(char)) for char in text)


def fold_case(chars: CharSet) -> CharSet:
    """Add the characters that differ from those of a set only in case."""
    variants = [
        (code, code) for group in _find_case_groups() if _overlaps(chars, group) for code in group
    ]
    return union_ranges((*chars, *variants))


def _overlaps(chars: CharSet, codes: Iterable[int]) -> bool:
    return any(low <= code <= high for code in codes for low, high in chars)


@lru_cache(maxsize=1)
def _find_case_groups() -> tuple[frozenset[int], ...]:
    """Return the groups of code points that differ only in case."""
    groups: dict[str, set[int]] = {}
    for code in range(MAX_ASSIGNED):
        char = chr(code)
        lower = char.lower()
        if lower != char or char.upper() != char:
            for key in {lower, char.upper().lower(), char.casefold()}:
                if len(key) == 1:
                    groups.setdefault(key, set()).update((code, ord(key)))
    return tuple(frozenset(group) for group in groups.values() if len(group) > 1)


@lru_cache(maxsize=64)
def get_unicode_category(names: str) -> CharSet:
    """Return the characters of some general categories, such as `"L Nd"`."""
    categories = tuple(names.split())
    ranges: list[tuple[int, int]] = []
    start = None
    last = MAX_CODE_POINT if "C" in names else MAX_ASSIGNED
    for code in range(last + 2):
        is_member = code <= last and unicodedata.category(chr(code)).startswith(categories)
        if is_member and start is None:
            start = code
        elif not is_member and start is not None:
            ranges.append((start, code - 1))
            start = None
    if "M" in categories and last == MAX_ASSIGNED:
        ranges.append((0xE0100, 0xE01EF))  # variation selectors
    return intersect(tuple(ranges), ALL_CHARS)


@lru_cache(maxsize=1)
def get_word_chars() -> CharSet:
    return union_ranges((*get_unicode_category("L M Nd Nl Pc"), *EXTRA_WORD_CHARS))


def get_perl_class(letter: str) -> CharSet:
    r"""Return what `\w`, `\d` or `\s` matches; upper-case letters stand for the complements."""
    match letter.lower():
        case "w":
            chars = get_word_chars()
        case "d":
            chars = get_unicode_category("Nd")
        case _:
            chars = get_chars(WHITESPACE)
    return complement(chars) if letter.isupper() else chars


def get_posix_class(name: str) -> CharSet:
    ends = POSIX_CLASSES[name]
    return union_ranges((ord(ends[at]), ord(ends[at + 1])) for at in range(0, len(ends), 2))


def to_regex_class(chars: CharSet) -> str:
    """Return a regular expression that matches one character of a set."""
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return _format_char(chars[0][0])
    return f"[{''.join(_format_range(low, high) for low, high in chars)}]"


def _format_range(low: int, high: int) -> str:
    return _format_char(low) if low == high else f"{_format_char(low)}-{_format_char(high)}"


def _format_char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
