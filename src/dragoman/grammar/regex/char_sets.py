"""Sets of letters, as rows of ranges: what a class of a regular expression stands for.

What a class means is what `llguidance` takes it for: classes go by Unicode, `.` is all but a line
feed. No set holds half of a surrogate pair, since no text does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

Letters: TypeAlias = tuple[tuple[int, int], ...]  # first and last of each range, in order

LAST, ASSIGNED = 0x10FFFF, 0x33FFF  # of all letters, and of those that are more than a number
NONE: Letters = ()
EVERY: Letters = ((0, 0xD7FF), (0xE000, LAST))
LINE: Letters = ((0, 9), (11, 0xD7FF), (0xE000, LAST))  # all but a line feed
SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    chr(code) for code in range(0x2000, 0x200B)
)
POSIX = {
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
JOINING: Letters = (
    (0x200C, 0x200D),
    (0x24B6, 0x24E9),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)


def joined(ranges: Iterable[tuple[int, int]]) -> Letters:
    """All letters of some ranges."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return tuple(found)


def met(left: Letters, right: Letters) -> Letters:
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


def other(letters: Letters) -> Letters:
    """All that is not in it."""
    found, at = [], 0
    for low, high in letters:
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    if at <= LAST:
        found.append((at, LAST))
    return met(tuple(found), EVERY)


def without(left: Letters, right: Letters) -> Letters:
    return met(left, other(right))


def holds(letters: Letters, letter: str) -> bool:
    return any(low <= ord(letter) <= high for low, high in letters)


def these(text: Iterable[str]) -> Letters:
    return joined((ord(letter), ord(letter)) for letter in text)


def folded(letters: Letters) -> Letters:
    """The same in either case."""
    more = [(code, code) for group in _cases() if _any_of(letters, group) for code in group]
    return joined((*letters, *more))


def _any_of(letters: Letters, group: Iterable[int]) -> bool:
    return any(low <= code <= high for code in group for low, high in letters)


@lru_cache(maxsize=1)
def _cases() -> tuple[frozenset[int], ...]:
    """Letters that differ in nothing but case."""
    groups: dict[str, set[int]] = {}
    for code in range(ASSIGNED):
        letter = chr(code)
        lower = letter.lower()
        if lower != letter or letter.upper() != letter:
            for key in {lower, letter.upper().lower(), letter.casefold()}:
                if len(key) == 1:
                    groups.setdefault(key, set()).update((code, ord(key)))
    return tuple(frozenset(group) for group in groups.values() if len(group) > 1)


@lru_cache(maxsize=64)
def category(names: str) -> Letters:
    """Letters of some general categories, given by their one or two letters and spaces."""
    wanted = tuple(names.split())
    found: list[tuple[int, int]] = []
    start = None
    last = LAST if "C" in names else ASSIGNED
    for code in range(last + 2):
        inside = code <= last and unicodedata.category(chr(code)).startswith(wanted)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            found.append((start, code - 1))
            start = None
    if "M" in wanted and last == ASSIGNED:
        found.append((0xE0100, 0xE01EF))  # far beyond all others
    return met(tuple(found), EVERY)


@lru_cache(maxsize=1)
def words() -> Letters:
    return joined((*category("L M Nd Nl Pc"), *JOINING))


def perl(letter: str) -> Letters:
    r"""What `\w`, `\d` and `\s` stand for, and the same in capitals for the opposite."""
    match letter.lower():
        case "w":
            found = words()
        case "d":
            found = category("Nd")
        case _:
            found = these(SPACE)
    return other(found) if letter.isupper() else found


def posix(name: str) -> Letters:
    ends = POSIX[name]
    return joined((ord(ends[at]), ord(ends[at + 1])) for at in range(0, len(ends), 2))


def in_class(letters: Letters) -> str:
    """A class of a regular expression."""
    if len(letters) == 1 and letters[0][0] == letters[0][1]:
        return _code(letters[0][0])
    ranges = (_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in letters)
    return f"[{''.join(ranges)}]"


def _code(code: int) -> str:
    letter = chr(code)
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{code:x}}}"
