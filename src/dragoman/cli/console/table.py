"""Tables of text, numbers as people read them, and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from dragoman.cli.console.text import print_text
from dragoman.types import Json


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = [tuple(headings), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print_text("  ".join(cells).rstrip())


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns; a value of several lines stays in its column."""
    pairs = list(fields)
    width = max((len(name) for name, _ in pairs), default=0) + 2
    for name, value in pairs:
        lines = value.splitlines() or [""]
        for head, line in zip([name, *[""] * len(lines)], lines, strict=False):
            print_text((head.ljust(width) + line).rstrip())


def print_json(value: Json) -> None:
    print_text(json.dumps(value, ensure_ascii=False, indent=2))


def format_size(size: int) -> str:
    if size >= 1e9:
        return f"{size / 1e9:,.1f} GB"
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def format_duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
