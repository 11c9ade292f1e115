"""The arguments of commands that use a running server, or load the model themselves."""

from __future__ import annotations

import argparse
import logging

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import CLIENT, COMMON, add_flags, list_model_settings


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="name or file of a model, or owner/repo of Hugging Face (default: --default-model)",
    )


def add_client_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local", action="store_true", help="load the model here even if a server is running"
    )
    add_flags(parser, {*CLIENT, *COMMON, "pull", "default_model", *list_model_settings()})


def reduce_logging(arguments: argparse.Namespace) -> None:
    """Log only warnings beside the output of a command, unless a flag says otherwise."""
    if arguments.log_level is None:
        logging.getLogger("dragoman").setLevel(logging.WARNING)


def needs_local_model(arguments: argparse.Namespace) -> bool:
    """Whether the flags are about a model that is loaded here, not by a server."""
    flags = [name for name in list_model_settings() if getattr(arguments, name, None) is not None]
    if not flags and not arguments.local:
        return False
    if getattr(arguments, "url", None):
        flag = f"--{flags[0].replace('_', '-')}" if flags else "--local"
        raise CommandFailed(f"{flag} is for a model that is loaded here: leave out --url.")
    return True
