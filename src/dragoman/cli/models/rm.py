"""`dragoman rm`: delete a model, or a name that `dragoman cp` gave it.

Only files inside the models directory are deleted, with all parts of a split model and directories
that are empty afterwards. A model that the running server has loaded is not deleted.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dragoman.cli.client.connect import find_server
from dragoman.cli.client.transport import RequestFailed
from dragoman.cli.console.ask import confirm
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import CLIENT, COMMON, add_flags, add_usage
from dragoman.cli.console.model_manager import open_manager
from dragoman.cli.console.table import format_size
from dragoman.cli.console.text import print_text
from dragoman.config import Settings

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelSource
    from dragoman.models.management.service import ModelManager


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] MODEL ...",
        examples=("dragoman rm smollm2-135m", "dragoman rm -y writer"),
    )
    parser.add_argument("names", nargs="+", metavar="MODEL", help="name of a model")
    parser.add_argument("-y", "--yes", action="store_true", help="delete without asking")
    add_flags(parser, {*COMMON, *CLIENT})


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    for name in arguments.names:
        with open_manager(settings) as manager:
            remove(manager, name, settings, is_confirmed=arguments.yes)


def remove(manager: ModelManager, name: str, settings: Settings, *, is_confirmed: bool) -> None:
    from dragoman.runtime import make_unknown_model_error

    source = manager.catalog.resolve(name)
    if source is None:
        raise make_unknown_model_error(manager.catalog, name)
    if manager.find(name) is None:  # the name of a repository on Hugging Face
        name = source.id
    deletion = manager.plan_deletion(name)
    key = deletion.entry
    rest = "its server" if source.kind == "remote" else f"the file {source.path}"
    if key is not None:
        if confirm(f"Remove the name {key}, and leave {rest} as it is?", is_confirmed):
            manager.delete(name)
            print_text(f"Removed the name {key}; {rest} is still there.")
        return
    check_not_loaded(source, settings)
    noun = "name" if len(deletion.names) == 1 else "names"
    also = f" and the {noun} {', '.join(deletion.names)}" if deletion.names else ""
    if confirm(f"Delete {source.path} ({format_size(deletion.size)}){also}?", is_confirmed):
        manager.delete(name, with_names=True)
        print_text(f"Deleted {source.path}{also}.")
    else:
        print_text("Nothing was deleted.")


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
