"""Runs a parsed command with the settings in effect. Every failure is one line and an exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys

from dragoman import config
from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.text import escape_controls
from dragoman.cli.serving.log_handler import configure_logging
from dragoman.errors import DragomanError, StartupError

log = logging.getLogger("dragoman")


def execute(parsed: argparse.Namespace) -> None:
    """Read the settings and run the command."""
    flags = {name: getattr(parsed, name, None) for name in config.list_settings()}
    try:
        configuration = config.load_configuration(flags, search=True)
    except config.SettingsError as error:
        sys.exit(f"dragoman: {error}")
    settings, parsed.configuration = configuration.settings, configuration
    configure_logging(settings)
    for warning in configuration.warnings:
        log.warning("%s", warning)
    if isinstance(sys.stdout, io.TextIOWrapper):  # some locales cannot encode every character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        parsed.run(parsed, settings)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        discard_output()
        sys.exit(1)
    except (CommandFailed, DragomanError, StartupError) as error:
        sys.exit(f"dragoman: {escape_controls(str(error))}")
    except OSError as error:
        discard_output()
        log.debug("a system call failed", exc_info=error)
        where = f": {error.filename}" if error.filename else ""
        sys.exit(f"dragoman: {error.strerror or error}{where}")


def discard_output() -> None:
    """Drop output that cannot be written, or Python tries again at exit and complains."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
