"""Texts that certain marks are not in.

`llguidance` finds out that a complement has led nowhere only by trying all that may follow, and
where letters are counted too (`maxLength`) that is more than it is willing to do: the answer would
end in an error. So for such texts what is allowed is said outright: a text is pieces that begin
with a mark's first letter, and each of them leaves the way of every mark before its end. Marks are
cut short for that, or the expression grows too large; a few more texts than need be are forbidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from dragoman.grammar.regex.escape import escape_regex, marker_to_regex, prefixes_to_regex
from dragoman.output.spec import GAP

MarkerTrie: TypeAlias = "dict[str, MarkerTrie]"  # what may follow; `END` where a mark is complete
MARKER_END = ""
MAX_MARKER_CHARS, MAX_WORD_MARKER_CHARS = (
    8,
    24,
)  # letters of a mark, and of one that is made of words


def exclude_markers(marks: Iterable[str], *, length_bounded: bool) -> str:
    """What to add to a regular expression so that none of these marks is in what it matches."""
    said = dict.fromkeys(marks)
    every = [one for one in said if not any(mark in one for mark in said if mark != one)]
    if not every:
        return ""
    if not length_bounded:
        return _complement_of(every)
    return "".join(f" & /{one}/" for one in marker_free_regexes(every))


def exclude_partial_markers(marks: Iterable[str]) -> str:
    """The same where what follows could finish a mark that has begun: none may have."""
    every = [mark.split(GAP)[0] for mark in marks]
    if not every:
        return ""
    begun = "|".join(prefixes_to_regex(mark[:-1]) for mark in every if mark[1:])
    return _complement_of(every) + (f" & ~/(?s:.*)(?:{begun})/" if begun else "")


def _complement_of(marks: Sequence[str]) -> str:
    return rf" & /(?s:.*)/ & ~/(?s:.*)(?:{'|'.join(map(marker_to_regex, marks))})(?s:.*)/"


def marker_free_regexes(marks: Iterable[str]) -> list[str]:
    """Regular expressions; a text that matches all of them holds none of these marks."""
    trees: dict[str, MarkerTrie] = {}
    for mark in marks:
        first, enough = mark[0], MAX_WORD_MARKER_CHARS if mark[0].isalpha() else MAX_MARKER_CHARS
        rest = mark.split(GAP)[0][1:enough].split(first)[0]
        tree = trees.setdefault(first, {})
        for letter in rest:
            tree = tree.setdefault(letter, {})
        tree[MARKER_END] = {}
    return [_segments_regex(first, tree) for first, tree in trees.items()]


def _segments_regex(first: str, tree: MarkerTrie) -> str:
    free = f"[^{_escape_in_class(first)}]*"
    return (
        free
        if MARKER_END in tree
        else f"{free}(?:{escape_regex(first)}{_rest_of_segment(first, tree)})*"
    )


def _rest_of_segment(first: str, tree: MarkerTrie) -> str:
    """The rest of a piece: it leaves the way of the marks, or the next piece begins already."""
    letters = "".join(map(_escape_in_class, (first, *tree)))
    ways = [f"[^{letters}][^{_escape_in_class(first)}]*"]
    ways += [
        f"{escape_regex(letter)}{_rest_of_segment(first, rest)}"
        for letter, rest in tree.items()
        if MARKER_END not in rest
    ]
    return f"(?:{'|'.join(ways)})?"


def _escape_in_class(letter: str) -> str:
    return r"\^" if letter == "^" else escape_regex(letter)
