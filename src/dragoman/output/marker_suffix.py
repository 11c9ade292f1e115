"""Markers with a suffix that each checkpoint chooses: `<tool_call:opensource>`.

A format description contains `SUFFIX` in place of the suffix. `fill_suffix` replaces it, and
`find_suffix` finds the suffix that a text, such as a rendered template, uses.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from typing import TypeVar

from dragoman.output.spec import SUFFIX, ReasoningFormat, ToolFormat

FORMAT = TypeVar("FORMAT", ToolFormat, ReasoningFormat)
SUFFIX_PATTERN = r":[\w.-]{1,64}"


def fill_suffix(entry: FORMAT, suffixes: tuple[str, ...]) -> FORMAT:
    """Return a format whose markers have any of these suffixes; its example has the first."""
    filled = _fill_fields(entry, suffixes)
    assert isinstance(filled, type(entry))  # noqa: S101
    return filled


def _fill_fields(value: object, suffixes: tuple[str, ...]) -> object:
    """Replace `SUFFIX` in all texts of a value; each marker of a tuple becomes several."""
    if isinstance(value, str):
        return value.replace(SUFFIX, suffixes[0])
    if isinstance(value, tuple):
        filled: list[object] = []
        for item in value:
            if isinstance(item, str) and SUFFIX in item:
                filled += [item.replace(SUFFIX, suffix) for suffix in suffixes]
            else:
                filled.append(_fill_fields(item, suffixes))
        return tuple(filled)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _fill_fields(getattr(value, field.name), suffixes)
            for field in fields(value)
        }
        return replace(value, **changed)
    return value


def is_suffix(text: str) -> bool:
    return re.fullmatch(SUFFIX_PATTERN, text) is not None


def find_suffix(entry: ToolFormat | ReasoningFormat, text: str) -> str | None:
    """Return the suffix of the format's opening markers in a text; None if they have none there."""
    for marker in _list_openers(entry):
        match = _make_pattern(marker).search(text)
        if match is not None:
            return match[1]
    return None


def _list_openers(entry: ToolFormat | ReasoningFormat) -> list[str]:
    if isinstance(entry, ToolFormat):
        markers = (*entry.section.open, *entry.call.open)
    else:
        markers = entry.open
    return [marker for marker in markers if SUFFIX in marker]


@lru_cache(maxsize=64)
def _make_pattern(marker: str) -> re.Pattern[str]:
    before, after = marker.split(SUFFIX)
    return re.compile(f"{re.escape(before)}({SUFFIX_PATTERN}){re.escape(after)}")
