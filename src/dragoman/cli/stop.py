"""`dragoman stop`: unload a model from the running server."""

from __future__ import annotations

import argparse

from dragoman.cli.client.connect import connect
from dragoman.cli.console.flags import ADMIN, add_flags, add_usage
from dragoman.cli.console.text import print_text
from dragoman.config import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] MODEL",
        examples=("dragoman stop smollm2-135m", "dragoman stop qwen3 --admin-key SECRET"),
    )
    parser.add_argument("model", metavar="MODEL", help="name of a loaded model; see `dragoman ps`")
    add_flags(parser, ADMIN)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    client = connect(settings, admin=True)
    model = client.get_model(arguments.model)
    if model.status not in ("ready", "loading"):
        print_text(f"{model.id} is not loaded.")
        return
    client.unload(model.id)
    if model.slots_busy:
        print_text(f"{model.id} will be unloaded when its requests have finished.")
    else:
        print_text(f"{model.id} is unloaded.")
