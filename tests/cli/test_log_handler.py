"""The log handler writes every line in order and never blocks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator

import pytest

from dragoman.cli.serving.log_handler import QueuedLogHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("dragoman", logging.INFO, "", 0, text, arguments, None)


def read_until(descriptor: int, end: bytes) -> bytes:
    output = b""
    while not output.endswith(end):
        output += os.read(descriptor, 1 << 16)
    return output


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    handler = QueuedLogHandler(pipe[1])
    for number in range(100):
        handler.emit(record("%d\udc80", number))
    handler.close()
    output = os.read(pipe[0], 1 << 16).decode()
    assert output.splitlines() == [f"{number}\\udc80" for number in range(100)]


def test_excess_lines_are_dropped_and_counted(pipe: tuple[int, int]) -> None:
    handler = QueuedLogHandler(pipe[1], max_waiting=3)
    large = "x" * (1 << 17)  # more than a pipe holds: the thread waits with it
    handler.emit(record(large))
    output = os.read(pipe[0], 1)
    for number in range(10):
        handler.emit(record("%d", number))
    output += read_until(pipe[0], b"2\n")
    handler.emit(record("end"))
    output += read_until(pipe[0], b"end\n")
    handler.close()
    assert output.decode().splitlines() == [
        large,
        "0",
        "1",
        "2",
        "7 lines were dropped here.",
        "end",
    ]


def test_non_blocking_pipe_is_waited_for(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    handler = QueuedLogHandler(pipe[1])
    large = "x" * (1 << 17)  # more than a pipe holds
    for text in (large, large, "end"):
        handler.emit(record(text))
    output = read_until(pipe[0], b"end\n")
    handler.close()
    assert output.decode().splitlines() == [large, large, "end"]


def test_closed_pipe_is_ignored() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = QueuedLogHandler(writing)
    handler.emit(record("one"))
    handler.emit(record("two"))
    handler.close()
    os.close(writing)
    assert "log writer" not in [thread.name for thread in threading.enumerate()]


def test_line_that_cannot_be_formatted_is_skipped(
    pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    handler = QueuedLogHandler(pipe[1])
    handler.emit(record("%d", "no number"))
    handler.emit(record("next"))
    handler.close()
    assert os.read(pipe[0], 100) == b"next\n"
    assert "Logging error" in capsys.readouterr().err
