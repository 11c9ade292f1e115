"""The command line: parses the arguments and runs one command."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence

from dragoman import config
from dragoman._version import __version__
from dragoman.cli import explain, formats, pull, serve
from dragoman.cli import list as list_command
from dragoman.cli import run as run_command
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.log_handler import LOG_FORMAT
from dragoman.config import Settings
from dragoman.errors import DragomanError

log = logging.getLogger("dragoman")
COMMANDS = (serve, run_command, pull, list_command, explain, formats)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dragoman",
        description="An OpenAI- and Anthropic-compatible server for open models.",
        epilog=f"Every flag can also be set in the environment as {config.PREFIX}<NAME>.",
    )
    parser.add_argument("--version", action="version", version=f"dragoman {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands).set_defaults(run=command.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = build_parser().parse_args(arguments)
    try:
        settings = config.load(
            {name: getattr(parsed, name, None) for name in config.list_settings()}
        )
    except config.SettingsError as error:
        sys.exit(f"dragoman: {error}")
    set_up_logging(settings)
    from dragoman.runtime import StartupError

    if isinstance(sys.stdout, io.TextIOWrapper):  # some locales cannot encode every character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        parsed.run(parsed, settings)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        discard_output()
        sys.exit(1)
    except (CommandFailed, DragomanError, StartupError) as error:
        sys.exit(f"dragoman: {error}")
    except OSError as error:
        discard_output()
        log.debug("a system call failed", exc_info=error)
        where = f": {error.filename}" if error.filename else ""
        sys.exit(f"dragoman: {error.strerror or error}{where}")
    except KeyboardInterrupt:
        sys.exit(130)


def discard_output() -> None:
    """Drop output that cannot be written, or Python tries again at exit and complains."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def set_up_logging(settings: Settings) -> None:
    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    logging.getLogger("dragoman").setLevel(settings.log_level.upper())
