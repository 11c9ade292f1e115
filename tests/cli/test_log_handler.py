"""The log of a server: whole and in order, and never waited for."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from dragoman.cli.log_handler import QueuedLogHandler


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
    handler = QueuedLogHandler(pipe[1])
    for number in range(100):
        handler.emit(record("%d\udc80", number))
    handler.close()
    said = os.read(pipe[0], 1 << 16).decode()
    assert said.splitlines() == [f"{number}\\udc80" for number in range(100)]


def test_what_is_too_much_is_dropped_and_counted(pipe: tuple[int, int]) -> None:
    handler = QueuedLogHandler(pipe[1], max_waiting=3)
    large = "x" * (1 << 17)  # more than a pipe holds: the thread waits with it
    handler.emit(record(large))
    said = os.read(pipe[0], 1)
    for number in range(10):
        handler.emit(record("%d", number))
    said += read_until(pipe[0], b"2\n")
    handler.emit(record("end"))
    said += read_until(pipe[0], b"end\n")
    handler.close()
    assert said.decode().splitlines() == [large, "0", "1", "2", "7 lines were dropped here.", "end"]


def test_a_pipe_that_does_not_wait_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    handler = QueuedLogHandler(pipe[1])
    large = "x" * (1 << 17)  # more than a pipe holds
    for text in (large, large, "end"):
        handler.emit(record(text))
    said = read_until(pipe[0], b"end\n")
    handler.close()
    assert said.decode().splitlines() == [large, large, "end"]


def test_a_reader_that_is_gone_is_no_trouble() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = QueuedLogHandler(writing)
    handler.emit(record("one"))
    handler.emit(record("two"))
    handler.close()
    os.close(writing)
    assert "log writer" not in [thread.name for thread in threading.enumerate()]


def test_a_line_that_cannot_be_made_is_left_out(
    pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    handler = QueuedLogHandler(pipe[1])
    handler.emit(record("%d", "no number"))
    handler.emit(record("next"))
    handler.close()
    assert os.read(pipe[0], 100) == b"next\n"
    assert "Logging error" in capsys.readouterr().err
