"""`dragoman pull`: download a model."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.console.ask import ask
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.flags import COMMON, add_flags, add_usage
from dragoman.cli.console.model_manager import open_manager
from dragoman.config import Settings
from dragoman.models.downloads.hub import is_hub_name, translate_hub_name
from dragoman.models.pull import DEFAULT_ALIASES, ProgressBar

if TYPE_CHECKING:
    from dragoman.models.catalog import ModelSource


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_usage(
        parser,
        "[FLAGS] MODEL",
        examples=(
            "dragoman pull smollm2-135m",
            "dragoman pull hf:Qwen/Qwen3-4B-GGUF",
            "dragoman pull hf:Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q8_0.gguf",
        ),
    )
    parser.add_argument(
        "model", metavar="MODEL", help="smollm2-135m, or hf:owner/repo[/file] from Hugging Face"
    )
    add_flags(parser, COMMON)


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    if not is_hub_name(arguments.model) and os.path.isfile(arguments.model):
        raise CommandFailed(
            f"{arguments.model!r} is a file that you have: `dragoman serve` and `dragoman run` "
            "take its path, and `dragoman cp` gives it a name."
        )
    path = download(arguments.model, settings)
    print(f"{arguments.model} is installed in {path}")


def choose_model(name: str | None, settings: Settings) -> str:
    """Return the named model, else the one of the settings, else the default one.

    The default one is downloaded if it is missing; one on Hugging Face with `--pull`, or if the
    user at the terminal agrees.
    """
    if settings.upstream:
        return name or ""  # all models of that server
    name = translate_hub_name(name or settings.default_model or next(iter(settings.models), ""))
    if not name:
        source = find_source(DEFAULT_ALIASES[0], settings)
        if source is None or source.broken is not None:
            download(DEFAULT_ALIASES[0], settings)
        return DEFAULT_ALIASES[0]
    is_default = name.strip().casefold() in DEFAULT_ALIASES
    if not (is_default or is_hub_name(name)) or find_source(name, settings) is not None:
        return name
    if is_default or settings.pull or confirm_download(name):
        return str(download(name, settings))
    return name


def find_source(name: str, settings: Settings) -> ModelSource | None:
    """Find an installed model. Mistakes in the settings are found before a long download."""
    from dragoman.runtime import open_catalog

    return open_catalog(settings).resolve(name, paths=True)


def confirm_download(name: str) -> bool:
    """Ask the user, if there is one, whether to download a model from Hugging Face."""
    return bool(ask(f"{name} is not installed. Download it from Hugging Face?"))


def download(name: str, settings: Settings) -> Path:
    progress = ProgressBar(sys.stderr)
    with open_manager(settings) as manager:
        path = manager.pull(name, progress)
    progress.close()
    return path
