"""Text that may come from a model, a file or a server, made safe to write to a terminal.

Control characters could move the cursor, change the title or answer for the user. On a terminal
they are written as visible symbols; in a pipe or a file the text stays as it is.
"""

from __future__ import annotations

import sys
from typing import TextIO

from dragoman.config import uses_color

DIM, RESET = "\x1b[2m", "\x1b[0m"
# C0 as the symbols of Unicode, DEL, and C1, which some terminals read as escape sequences.
_VISIBLE = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421, ord("\r"): None}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
# Characters that reorder a line, so that it reads differently from what it is.
_VISIBLE |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
del _VISIBLE[ord("\n")], _VISIBLE[ord("\t")]


def escape_controls(text: str) -> str:
    """Replace control characters other than newline and tab by visible symbols."""
    return text.translate(_VISIBLE)


class Console:
    """An output stream. Everything is escaped if it is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self.is_terminal = self._stream.isatty()
        self.has_color = self.is_terminal and uses_color()

    def write(self, text: str) -> None:
        self._stream.write(escape_controls(text) if self.is_terminal else text)
        self._stream.flush()

    def print(self, text: str = "") -> None:
        self.write(text + "\n")

    def set_dim(self, is_dim: bool) -> None:
        """Write dim text from now on, or normal text, where the terminal has colors."""
        if self.has_color:
            self._stream.write(DIM if is_dim else RESET)
            self._stream.flush()


def print_status(text: str) -> None:
    """Print a line in one piece: where output is not buffered, a log line could split it."""
    print(f"{text}\n", end="", flush=True)


def print_text(text: str) -> None:
    """Print text that is not ours."""
    Console().print(text)
