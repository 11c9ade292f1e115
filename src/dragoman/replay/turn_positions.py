"""Finds the turns with a replay in the pieces of a prompt.

Each of them has a marker in its texts (`dragoman.prompt.turn_markers`). In the prompt it extends
from a special token before its first marker to one after its last marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from dragoman.prompt.turn_markers import find_markers

MAX_CANDIDATES = 8  # special tokens before the first marker to compare with the opening


class TurnOpening(Struct, frozen=True):
    """The start of a turn: a special token, and the text up to the next one, if there is one.

    Text that no special token follows is the beginning of the answer and may differ later.
    """

    special: str
    text: str = ""


class TurnEndings(Struct, frozen=True):
    """The special tokens that a turn ends before, and those that it ends after."""

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()


class TurnSpan(Struct, frozen=True):
    """The pieces of a turn, from `start` up to `end`."""

    start: int
    end: int
    number: int


def locate_turns(
    pieces: Sequence[str], openings: Sequence[TurnOpening], endings: TurnEndings
) -> tuple[list[TurnSpan], set[int]]:
    """Return the spans of all turns, in order, and the numbers of the turns that have none.

    A turn without a span does not affect the spans of others.
    """
    located: list[TurnSpan] = []
    missing = set(range(len(openings)))
    marked = sorted((first, last, number) for number, (first, last) in find_markers(pieces).items())
    floor = 0
    for index, (first, last, number) in enumerate(marked):
        ceiling = marked[index + 1][0] if index + 1 < len(marked) else len(pieces)
        start = _find_start(pieces, range(first - 1, floor - 1, -2), openings[number])
        end = _find_end(pieces, range(last + 1, ceiling, 2), endings)
        floor = last + 1
        if start is not None and end is not None:
            located.append(TurnSpan(start, end, number))
            missing.discard(number)
            floor = end
    return located, missing


def _find_start(pieces: Sequence[str], candidates: range, opening: TurnOpening) -> int | None:
    """Return the nearest special token that equals the opening's and is followed by its text."""
    matches = (index for index in candidates if index > 0 and pieces[index] == opening.special)
    text = opening.text.strip()
    nearest = islice(matches, MAX_CANDIDATES)
    return next((index for index in nearest if pieces[index + 1].strip().startswith(text)), None)


def _find_end(pieces: Sequence[str], candidates: range, endings: TurnEndings) -> int | None:
    for index in candidates:
        if pieces[index] in endings.before:
            return index
        if pieces[index] in endings.after:
            return index + 1
    return None
