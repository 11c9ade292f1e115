"""Texts that certain marks are not in, as regular expressions without a complement.

`llguidance` finds out that a complement has led nowhere only by trying everything that may follow,
and where letters are counted too (`maxLength`) that is more than it is willing to do. So what is
allowed is said outright: a text is pieces that begin with a mark's first letter, and each of them
leaves the way of every mark before it comes to its end.

That is only so simple where the first letter of a mark is nowhere else in it. Other marks, and
those with gaps, are left to the complement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from dragoman.constraint.lark import escaped, pattern
from dragoman.parse.spec import GAP

Tree: TypeAlias = "dict[str, Tree]"  # what may follow; `END` where a mark is complete
END = ""


def avoiding(marks: Iterable[str]) -> str:
    """What to add to a regular expression so that none of these marks is in what it matches."""
    trees: dict[str, Tree] = {}
    others = []
    for mark in dict.fromkeys(marks):
        if GAP in mark or mark[0] in mark[1:]:
            others.append(pattern(mark))
            continue
        tree = trees.setdefault(mark[0], {})
        for letter in mark[1:]:
            tree = tree.setdefault(letter, {})
        tree[END] = {}
    found = [f" & /{_pieces(first, tree)}/" for first, tree in trees.items()]
    if others:
        found.append(rf" & /(?s:.*)/ & ~/(?s:.*)(?:{'|'.join(others)})(?s:.*)/")
    return "".join(found)


def _pieces(first: str, tree: Tree) -> str:
    free = f"[^{_in_class(first)}]*"
    return free if END in tree else f"{free}(?:{escaped(first)}{_leaving(first, tree)})*"


def _leaving(first: str, tree: Tree) -> str:
    """The rest of a piece: it leaves the way of the marks, or the next piece begins already."""
    letters = "".join(map(_in_class, (first, *tree)))
    ways = [f"[^{letters}][^{_in_class(first)}]*"]
    ways += [
        f"{escaped(letter)}{_leaving(first, rest)}"
        for letter, rest in tree.items()
        if END not in rest
    ]
    return f"(?:{'|'.join(ways)})?"


def _in_class(letter: str) -> str:
    return r"\^" if letter == "^" else escaped(letter)
