"""Questions to the user."""

from __future__ import annotations

import sys

from dragoman.cli.console.errors import CommandFailed
from dragoman.cli.console.text import Console


def ask(question: str) -> bool | None:
    """Ask a question and return the answer; None if there is no terminal to ask on."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    Console(sys.stderr).write(f"{question} [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def confirm(question: str, is_confirmed: bool) -> bool:
    """Ask a question that `-y` answers. Without a terminal to ask on, `-y` is needed."""
    answer = is_confirmed or ask(question)
    if answer is None:
        raise CommandFailed(f"{question} Confirm it with -y.")
    return answer
