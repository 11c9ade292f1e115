"""`dragoman cp`: give a model another name.

The name becomes an entry of models.yaml with the path and the options of the model; nothing is
copied on disk. Two names with the same options are one model in memory.
"""

from __future__ import annotations

import argparse

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, add_flags, add_usage
from dragoman.cli.console.model_manager import open_manager
from dragoman.cli.console.text import print_text
from dragoman.config import Settings

MAX_NAME = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] SOURCE ALIAS",
        examples=("dragoman cp smollm2-135m gpt-4o-mini", "dragoman cp ./model.gguf writer"),
    )
    parser.add_argument("source", metavar="SOURCE", help="name or file of a model")
    parser.add_argument("alias", metavar="ALIAS", help="the additional name")
    add_flags(parser, COMMON)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    alias = check_alias(arguments.alias)
    with open_manager(settings, arguments.source) as manager:
        source = manager.catalog.added[0]
        manager.copy(arguments.source, alias, found=source)
        print_text(f"{arguments.source} is also named {alias}, in {manager.mapping}.")


def check_alias(alias: str) -> str:
    if not alias.strip() or len(alias) > MAX_NAME or not alias.isprintable():
        raise CommandFailed("A name must be printable and not empty.")
    return alias.strip()
