"""The log of a server, written by a thread of its own.

Whoever logs only puts a line in a queue: a terminal that is held with Ctrl-S, or a pipe that nobody
reads, must not stop an answer. When too many lines wait, new ones are dropped and counted, and the
count is written once there is room again. At the end what waits is written if that is quick.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from queue import SimpleQueue

MOST = 10_000  # lines that may wait
PARTING = 1.0  # seconds for the last of them


class Journal(logging.Handler):
    """Writes lines to a file descriptor, whose reader may be slow or gone."""

    def __init__(self, descriptor: int, most: int = MOST) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._most = most
        self._lost = 0
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= self._most:
            self._lost += 1
            return
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._lost:
            line, self._lost = f"{self._lost} lines were dropped here.\n{line}", 0
        self._lines.put(line)

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(PARTING)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            left = f"{line}\n".encode(errors="backslashreplace")
            try:
                while left:
                    left = self._some(left)
            except OSError:  # nobody will read it
                continue

    def _some(self, left: bytes) -> bytes:
        """Write what there is room for; what is left then."""
        try:
            return left[os.write(self._descriptor, left) :]
        except BlockingIOError:  # a terminal that another program has set so
            select.select((), (self._descriptor,), ())
            return left
