"""Regular expressions for markers, and for the beginning of one at the end of a text."""

from __future__ import annotations

import re

from dragoman.output.spec import GAP

MAX_NESTED_PREFIX = 100  # characters; longer markers do not nest one group per character


def list_spellings(marker: str) -> list[str]:
    """Return a marker and, if it starts with a line break, the same with the one of Windows.

    Each starts with one certain character, which makes the search fast.
    """
    return [marker, "\r" + marker] if marker[0] == "\n" else [marker]


def _list_atoms(marker: str) -> list[str]:
    atoms: list[str] = []
    for index, char in enumerate(marker):
        if char == "\n" and index and marker[index - 1] != "\r":
            atoms.append("\r?")  # a line break of Windows is the same
        atoms.append(r"\s{0,16}" if char == GAP else re.escape(char))
    return atoms


def write_pattern(marker: str) -> str:
    """Return a pattern for a marker."""
    pattern = "".join(_list_atoms(marker))
    # of a longer run of characters, the last ones are the marker
    return f"{pattern}(?!{re.escape(marker[0])})" if is_run(marker) else pattern


def is_run(marker: str) -> bool:
    """Whether a marker repeats one character."""
    return len(marker) > 1 and len(set(marker)) == 1


def write_partial_pattern(marker: str) -> str:
    """Return a pattern for a prefix of the marker at the end of the text."""
    atoms = _list_atoms(marker)
    if not is_run(marker):
        atoms.pop()
    if len(atoms) > MAX_NESTED_PREFIX:
        return (
            "(?:"
            + "|".join("".join(atoms[:length]) for length in range(len(atoms), 0, -1))
            + r")\Z"
        )
    pattern = ""
    for atom in reversed(atoms):
        pattern = rf"{atom}(?:\Z|{pattern})" if pattern else rf"{atom}\Z"
    return pattern
