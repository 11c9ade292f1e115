"""A log handler that writes in a thread of its own.

Logging only puts a line into a queue: a terminal paused with Ctrl-S, or a pipe without a reader,
must not block an answer. When too many lines wait, new ones are dropped and counted, and the count
is written once there is room again. Closing the handler writes the waiting lines if that is quick.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from queue import SimpleQueue

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
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
            line, self._dropped = f"{self._dropped} lines were dropped here.\n{line}", 0
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
