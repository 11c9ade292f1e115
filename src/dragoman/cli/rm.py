"""`dragoman rm`: delete a model, or a name that `dragoman cp` gave it.

Only files inside the models directory are deleted, with all parts of a split model and directories
that are empty afterwards. A model that the running server has loaded is not deleted.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.client.connect import find_server
from dragoman.cli.client.transport import RequestFailed
from dragoman.cli.console.ask import confirm
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import CLIENT, COMMON, add_command, add_flags
from dragoman.cli.console.table import format_size
from dragoman.cli.console.text import print_text
from dragoman.cli.cp import get_mapping_file
from dragoman.config import Settings
from dragoman.models.management.deletion import is_inside, list_files, remove_empty_directories
from dragoman.models.mapping_file import read_entries, remove_entry

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelCatalog, ModelSource


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = add_command(
        commands,
        "rm",
        "delete a model, or one of its names",
        examples=("dragoman rm smollm2-135m", "dragoman rm -y writer"),
    )
    parser.add_argument("names", nargs="+", metavar="MODEL", help="name of a model")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without asking")
    add_flags(parser, {*COMMON, *CLIENT})
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    from dragoman.runtime import make_unknown_model_error, open_catalog

    for name in arguments.names:
        catalog = open_catalog(settings)
        source = catalog.resolve(name)
        if source is None:
            raise make_unknown_model_error(catalog, name)
        key = find_entry(catalog, name)
        if key is not None:
            remove_name(catalog, key, source, arguments.yes)
        else:
            check_not_loaded(source, settings)
            delete_model(catalog, source, arguments.yes)


def find_entry(catalog: ModelCatalog, name: str) -> str | None:
    """Return the key of models.yaml that is this name."""
    from dragoman.models.name_index import normalize_name

    keys = [key for key in read_entries(get_mapping_file(catalog)) if isinstance(key, str)]
    return next((key for key in keys if normalize_name(key) == normalize_name(name)), None)


def remove_name(catalog: ModelCatalog, key: str, source: ModelSource, is_confirmed: bool) -> None:
    if confirm(f"Remove the name {key}? Its file {source.path} stays.", is_confirmed):
        remove_entry(get_mapping_file(catalog), key)
        print_text(f"Removed the name {key}; the file {source.path} is still there.")


def check_not_loaded(source: ModelSource, settings: Settings) -> None:
    """Refuse to delete a model that the running server has loaded."""
    try:
        server = find_server(settings)
        models = server.list_models() if server is not None else []
    except RequestFailed as error:
        if settings.url:
            raise
        print_text(f"Cannot ask the running server whether it uses {source.id}: {error}")
        return
    for model in models:
        # The server may have another models directory: compare what identifies the file.
        is_same = (model.size, model.created) == (source.size, source.created)
        if is_same and model.status in ("ready", "loading"):
            raise CommandFailed(
                f"The running server has {model.id} loaded: `dragoman stop {model.id}` unloads it."
            )


def delete_model(catalog: ModelCatalog, source: ModelSource, is_confirmed: bool) -> None:
    root = catalog.root
    if root is None or not is_inside(source.path, root):
        raise CommandFailed(
            f"{source.id} is {source.path}, which is not in the models directory: "
            "delete it yourself."
        )
    for name, (path, _) in catalog.configured.items():
        if os.path.realpath(path) == source.real_path:
            raise CommandFailed(f"{name} is in the configuration file: remove it there first.")
    files = list_files(source)
    names = find_names(catalog, source)
    also = f" and the names {', '.join(names)}" if names else ""
    size = format_size(sum(file.lstat().st_size for file in files))
    if not confirm(f"Delete {source.path} ({size}){also}?", is_confirmed):
        print_text("Nothing was deleted.")
        return
    for file in files:
        file.unlink()
    for name in names:
        remove_entry(get_mapping_file(catalog), name)
    remove_empty_directories(source.path.parent if source.kind == "gguf" else source.path, root)
    print_text(f"Deleted {source.id}{also}.")


def find_names(catalog: ModelCatalog, source: ModelSource) -> list[str]:
    """List the names in models.yaml that would be left without a file."""
    file = get_mapping_file(catalog)
    names = []
    for key, value in read_entries(file).items():
        path = value.get("path") if isinstance(value, dict) else value
        if isinstance(key, str) and isinstance(path, str):
            target = os.path.realpath(file.parent / Path(path).expanduser())
            names += [key] if target == source.real_path else []
    return names
