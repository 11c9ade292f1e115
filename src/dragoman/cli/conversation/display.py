"""How an answer looks: reasoning dimmed on a terminal, and left out of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from dragoman.cli.console.text import Console
from dragoman.cli.conversation.answer import AnswerChannel, AnswerStats

REASONING_STARTS, REASONING_ENDS = "Thinking …\n", "… done thinking.\n\n"


class AnswerDisplay:
    """Writes answers to one console; remarks about them go to stderr."""

    def __init__(self, console: Console, shows_reasoning: bool = True) -> None:
        self._console = console
        self._shows_reasoning = shows_reasoning and console.is_terminal
        self._channel: AnswerChannel = "text"
        self._is_at_line_start = True

    def write(self, channel: AnswerChannel, text: str) -> None:
        if channel != self._channel:
            self._switch(channel)
        if channel == "text" or self._shows_reasoning:
            self._write(text)

    def finish(self) -> None:
        """End the answer, wherever it stopped."""
        if self._channel == "reasoning":
            self._switch("text")
        if not self._is_at_line_start:
            self._write("\n")

    def _switch(self, channel: AnswerChannel) -> None:
        self._channel = channel
        if not self._shows_reasoning:
            return
        if channel == "reasoning":
            self._console.set_dim(True)
            self._write(REASONING_STARTS)
        else:
            self._write("" if self._is_at_line_start else "\n")
            self._write(REASONING_ENDS)
            self._console.set_dim(False)

    def _write(self, text: str) -> None:
        self._console.write(text)
        if text:
            self._is_at_line_start = text.endswith("\n")


def print_remarks(remarks: Iterable[str]) -> None:
    """Print warnings and other remarks beside the answer."""
    console = Console(sys.stderr)
    for remark in remarks:
        console.set_dim(True)
        console.write(remark)
        console.set_dim(False)
        console.print()


def format_stats(stats: AnswerStats) -> str:
    """Return the statistics of an answer in one line."""
    return "; ".join(f"{name}: {value}" for name, value in stats.describe())
