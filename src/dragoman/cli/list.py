"""`dragoman list`: list the installed models."""

from __future__ import annotations

import argparse

from dragoman.cli.flags import COMMON, add_flags
from dragoman.config import Settings

HEADINGS = ("NAME", "ARCHITECTURE", "QUANTIZATION", "CONTEXT", "SIZE", "")


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = commands.add_parser("list", help="list installed models")
    add_flags(parser, COMMON)
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.runtime import open_catalog

    sources = open_catalog(settings).list_sources()
    if not sources:
        print("No models are installed. `dragoman pull smollm2-135m` downloads the default model.")
        return
    rows = [HEADINGS]
    rows += [
        (
            source.id,
            source.architecture or "-",
            source.quantization or "-",
            str(source.context or "-"),
            f"{source.size / 1e6:,.0f} MB",
            f"broken: {source.broken}" if source.broken else "",
        )
        for source in sources
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
