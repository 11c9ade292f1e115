"""`dragoman list`: list the installed models."""

from __future__ import annotations

import argparse

from dragoman.cli.console.table import format_size, print_json, print_table
from dragoman.cli.flags import COMMON, add_command, add_flags
from dragoman.config import Settings
from dragoman.models.catalog import ModelSource
from dragoman.types import Json

HEADINGS = ("NAME", "ARCHITECTURE", "QUANTIZATION", "CONTEXT", "SIZE", "")


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "list",
        "list installed models",
        aliases=("ls",),
        examples=("dragoman list", "dragoman list --json --models-dir /srv/models"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, COMMON)
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.runtime import open_catalog

    sources = open_catalog(settings).list_sources()
    if arguments.json:
        print_json([describe_source(source) for source in sources])
    elif sources:
        print_table(HEADINGS, map(make_row, sources))
    else:
        print("No models are installed. `dragoman pull smollm2-135m` downloads the default model.")


def make_row(source: ModelSource) -> tuple[str, ...]:
    names = ", ".join(source.aliases)
    return (
        source.id,
        source.architecture or "-",
        source.quantization or "-",
        str(source.context or "-"),
        format_size(source.size),
        f"broken: {source.broken}" if source.broken else f"also {names}" if names else "",
    )


def describe_source(source: ModelSource) -> dict[str, Json]:
    """Return what is known about a model without loading it."""
    return {
        "name": source.id,
        "aliases": list(source.aliases),
        "path": str(source.path),
        "format": source.kind,
        "architecture": source.architecture,
        "parameters": source.parameters,
        "quantization": source.quantization,
        "context": source.context,
        "size": source.size,
        "modified": source.created,
        "error": source.broken,
    }
