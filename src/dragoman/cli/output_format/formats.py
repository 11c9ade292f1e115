"""`dragoman formats`: list the known output formats."""

from __future__ import annotations

import argparse

from dragoman.cli.console.flags import add_command, add_flags
from dragoman.cli.console.table import print_json
from dragoman.config import Settings


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "formats",
        "list the known output formats",
        usage="[FLAGS]",
        examples=("dragoman formats", "dragoman formats --json"),
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, ("log_level",))
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.explain.format_list import describe_formats, format_table

    if arguments.json:
        print_json(describe_formats())
    else:
        print(format_table())
