"""Text that commands read from a file or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from dragoman.cli.console.errors import CommandFailed

STANDARD_INPUT = "-"


def read_text_file(file: str) -> str:
    """Return the text of a file, or of standard input for `-`."""
    try:
        if file == STANDARD_INPUT:
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} is not UTF-8 text.") from None
