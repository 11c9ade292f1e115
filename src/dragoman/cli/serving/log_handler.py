"""A log handler that writes in a thread of its own.

Logging only puts a line into a queue: a terminal paused with Ctrl-S, or a pipe without a reader,
must not block an answer. When too many lines wait, new ones are dropped and counted, and the count
is written once there is room again. Closing the handler writes the waiting lines if that is quick.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from dragoman.config import Settings
from dragoman.telemetry.log_format import make_formatter

MAX_WAITING = 10_000  # lines
CLOSE_TIMEOUT = 1.0  # seconds to write the last lines


class QueuedLogHandler(logging.Handler):
    """Writes lines to a file descriptor whose reader may be slow or gone."""

    def __init__(self, descriptor: int, max_waiting: int = MAX_WAITING) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_waiting = max_waiting
        self._dropped = 0
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_lines, name="log writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= self._max_waiting:
            self._dropped += 1
            return
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._dropped:
            self._lines.put(self.format(_report_dropped(self._dropped)))
            self._dropped = 0
        self._lines.put(line)

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(CLOSE_TIMEOUT)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            rest = f"{line}\n".encode(errors="backslashreplace")
            try:
                while rest:
                    rest = self._write_some(rest)
            except OSError:  # the reader is gone
                continue

    def _write_some(self, data: bytes) -> bytes:
        """Write what there is room for and return the rest."""
        try:
            return data[os.write(self._descriptor, data) :]
        except BlockingIOError:  # another program made the terminal non-blocking
            select.select((), (self._descriptor,), ())
            return data


def _report_dropped(count: int) -> logging.LogRecord:
    message = "%d lines were dropped here."
    return logging.LogRecord("dragoman.log", logging.WARNING, "", 0, message, (count,), None)


def configure_logging(settings: Settings, *, queued: bool = False) -> None:
    """Log to standard error as the settings say; `queued` is for servers, which must not block."""
    handler = make_handler(settings, queued=queued)
    omit_unused_fields()
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("dragoman").setLevel(settings.log_level.upper())


def omit_unused_fields() -> None:
    """Leave out of log records what our lines never show; it takes half of the time of a line.

    These are the switches that the documentation of `logging` names. They apply to the whole
    program.
    """
    logging._srcfile = None  # the calling function
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


@contextmanager
def log_to_stderr(settings: Settings, *, sets_level: bool) -> Iterator[None]:
    """Log to standard error for a while, inside a program that has not configured logging.

    Where the program has, only the level of our own logger is set, if it `sets_level`.
    """
    logger = logging.getLogger("dragoman")
    level, handler = logger.level, None
    if not logger.hasHandlers():
        handler = make_handler(settings, queued=True)
        logger.addHandler(handler)
    if level == logging.NOTSET and (handler is not None or sets_level):
        logger.setLevel(settings.log_level.upper())
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            logger.removeHandler(handler)
            handler.close()


def make_handler(settings: Settings, *, queued: bool) -> logging.Handler:
    handler: logging.Handler = logging.StreamHandler()
    if queued:
        with suppress(OSError):  # standard error of a notebook is no file
            handler = QueuedLogHandler(sys.stderr.fileno())
    handler.setFormatter(make_formatter(settings.log_format))
    return handler
