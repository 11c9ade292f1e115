"""`dragoman cp`: give a model another name.

The name becomes an entry of models.yaml with the path and the options of the model; nothing is
copied on disk. Two names with the same options are one model in memory.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, add_command, add_flags
from dragoman.cli.console.text import print_text
from dragoman.config import Settings
from dragoman.models.mapping_file import NESTED, add_entry, read_entries
from dragoman.types import Json

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelCatalog, ModelSource

MAX_NAME = 200


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "cp",
        "give a model another name",
        examples=("dragoman cp smollm2-135m gpt-4o-mini", "dragoman cp ./model.gguf writer"),
    )
    parser.add_argument("source", metavar="SOURCE", help="name or file of a model")
    parser.add_argument("alias", metavar="ALIAS", help="the additional name")
    add_flags(parser, COMMON)
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.models.catalog import list_names
    from dragoman.models.name_index import normalize_name
    from dragoman.runtime import open_catalog

    alias = check_alias(arguments.alias)
    catalog = open_catalog(settings, arguments.source)
    source = catalog.added[0]
    for other in catalog.list_sources():
        if normalize_name(alias) in map(normalize_name, list_names(other)):
            raise CommandFailed(f"There is a model `{alias}` already.")
    file = get_mapping_file(catalog)
    entry = make_entry(source, arguments.source, file)
    if isinstance(entry, str) and source.options != catalog.base:
        raise CommandFailed(
            f"The options of {source.id} are in the configuration file: add the name there."
        )
    add_entry(file, alias, entry)
    print_text(f"{source.id} is also named {alias}, in {file}.")


def get_mapping_file(catalog: ModelCatalog) -> Path:
    """Return the file with the names of models."""
    if catalog.mapping is None:
        raise CommandFailed("There is no file for names of models.")
    return catalog.mapping


def check_alias(alias: str) -> str:
    if not alias.strip() or len(alias) > MAX_NAME or not alias.isprintable():
        raise CommandFailed("A name must be printable and not empty.")
    if alias.strip() == NESTED:
        raise CommandFailed(f"`{NESTED}` is a key of models.yaml: choose another name.")
    return alias.strip()


def make_entry(source: ModelSource, name: str, file: Path) -> Json:
    """Return the entry of a model: as its own entry is written, else its path."""
    from dragoman.models.name_index import normalize_name

    for key, value in read_entries(file).items():
        if isinstance(key, str) and normalize_name(key) == normalize_name(name):
            return value
    path = os.path.abspath(source.path)
    directory = os.path.abspath(file.parent)
    if os.path.commonpath([path, directory]) == directory:
        return os.path.relpath(path, directory)
    return path
