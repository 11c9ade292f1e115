"""The log of a server: whole and in order, and never waited for."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from dragoman.cli.log_handler import Journal


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("dragoman", logging.INFO, "", 0, text, arguments, None)


def read_until(descriptor: int, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        said += os.read(descriptor, 1 << 16)
    return said


def test_lines_come_in_order(pipe: tuple[int, int]) -> None:
    journal = Journal(pipe[1])
    for number in range(100):
        journal.emit(record("%d\udc80", number))
    journal.close()
    said = os.read(pipe[0], 1 << 16).decode()
    assert said.splitlines() == [f"{number}\\udc80" for number in range(100)]


def test_what_is_too_much_is_dropped_and_counted(pipe: tuple[int, int]) -> None:
    journal = Journal(pipe[1], most=3)
    large = "x" * (1 << 17)  # more than a pipe holds: the thread waits with it
    journal.emit(record(large))
    said = os.read(pipe[0], 1)
    for number in range(10):
        journal.emit(record("%d", number))
    said += read_until(pipe[0], b"2\n")
    journal.emit(record("end"))
    said += read_until(pipe[0], b"end\n")
    journal.close()
    assert said.decode().splitlines() == [large, "0", "1", "2", "7 lines were dropped here.", "end"]


def test_a_pipe_that_does_not_wait_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    journal = Journal(pipe[1])
    large = "x" * (1 << 17)  # more than a pipe holds
    for text in (large, large, "end"):
        journal.emit(record(text))
    said = read_until(pipe[0], b"end\n")
    journal.close()
    assert said.decode().splitlines() == [large, large, "end"]


def test_a_reader_that_is_gone_is_no_trouble() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    journal = Journal(writing)
    journal.emit(record("one"))
    journal.emit(record("two"))
    journal.close()
    os.close(writing)
    assert "journal" not in [thread.name for thread in threading.enumerate()]


def test_a_line_that_cannot_be_made_is_left_out(
    pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(pipe[1])
    journal.emit(record("%d", "no number"))
    journal.emit(record("next"))
    journal.close()
    assert os.read(pipe[0], 100) == b"next\n"
    assert "Logging error" in capsys.readouterr().err
