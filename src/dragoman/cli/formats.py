"""`dragoman formats`: list the known output formats."""

from __future__ import annotations

import argparse

from dragoman.cli.flags import add_flags
from dragoman.config import Settings


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = commands.add_parser("formats", help="list the known output formats")
    add_flags(parser, ("log_level",))
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.explain import format_table

    print(format_table())
