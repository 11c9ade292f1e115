"""Collects the log lines of a server in this process."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dragoman.telemetry.log_format import make_formatter
from tests.support.serving import poll_until


class LogLines(logging.Handler):
    """The lines of the access log, formatted as the command line formats them."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self.setFormatter(make_formatter(log_format))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def wait_for(self, text: str, count: int = 1) -> list[str]:
        """Wait until this many lines contain a text, and return them.

        A line is written after the end of its response.
        """

        def find() -> list[str]:
            return [line for line in list(self.lines) if text in line]

        poll_until(lambda: len(find()) >= count)
        return find()

    def wait_for_event(self, text: str) -> dict[str, Any]:
        event = json.loads(self.wait_for(text)[-1])
        assert isinstance(event, dict)
        return event


@contextmanager
def collect_logs(log_format: str = "text", level: int = logging.INFO) -> Iterator[LogLines]:
    """Collect the lines that all requests write, from this level on."""
    logger, lines = logging.getLogger("dragoman"), LogLines(log_format)
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
