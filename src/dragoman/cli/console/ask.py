"""Questions to the user."""

from __future__ import annotations

import sys

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.text import Console


def confirm(question: str, is_confirmed: bool) -> bool:
    """Ask a question that `-y` answers. Without a terminal to ask on, `-y` is needed."""
    if is_confirmed:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandFailed(f"{question} Confirm it with -y.")
    Console(sys.stderr).write(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
