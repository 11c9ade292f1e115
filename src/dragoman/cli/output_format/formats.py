"""`dragoman formats`: list the known output formats."""

from __future__ import annotations

import argparse

from dragoman.cli.console.flags import add_flags, add_usage
from dragoman.cli.console.table import print_json
from dragoman.config import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS]",
        examples=("dragoman formats", "dragoman formats --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, ("log_level",))


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.explain.format_list import describe_formats, format_table

    if arguments.json:
        print_json(describe_formats())
    else:
        print(format_table())
