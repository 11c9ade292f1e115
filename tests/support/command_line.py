"""Runs a command of the command line in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import Struct

from dragoman.cli.main import main


class CommandResult(Struct, frozen=True):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> CommandResult:
    """Run a command; a message given to `sys.exit` is on the standard error, as in a program."""
    capsys.readouterr()
    code: object = 0
    with _restore_logging():
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
    out, err = capsys.readouterr()
    if isinstance(code, str):
        return CommandResult(1, out, f"{err}{code}\n")
    return CommandResult(code if isinstance(code, int) else 0, out, err)


def check_line(result: CommandResult, message: str) -> None:
    """Check that a command failed with one line that contains the message."""
    assert result.code != 0
    assert len(result.err.splitlines()) == 1, result.err
    assert result.err.startswith("dragoman: ")
    assert message in result.err


@contextmanager
def _restore_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("dragoman")
    before = root.handlers[:], root.level, ours.handlers[:], ours.level, ours.propagate
    try:
        yield
    finally:
        for handler in {*root.handlers, *ours.handlers} - {*before[0], *before[2]}:
            handler.close()
        root.handlers[:], ours.handlers[:] = before[0], before[2]
        root.setLevel(before[1])
        ours.setLevel(before[3])
        ours.propagate = before[4]
