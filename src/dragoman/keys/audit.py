"""The audit log: what administrators do, and who is refused. One JSON object per line.

Keys appear by name, never by value. Lines are written by a thread, so that a slow disk delays no
request. Refusals have a limit per source and one for all together, so that a flood cannot fill a
disk; how many were left out is written once there is room again. `reopen` closes the file and opens
the one that has its name now, for programs that rotate logs.

Without a file, what administrators do is in the ordinary log, and so is the line of every request.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

from dragoman.keys.rate_limits import RateBucket
from dragoman.types import Json

log = logging.getLogger("dragoman.audit")
MAX_WAITING = 10_000  # lines
MAX_REFUSALS, MAX_REFUSALS_PER_SOURCE = 120, 30  # a minute
MAX_SOURCES = 1000  # that have limits of their own
CLOSE_TIMEOUT = 1.0  # seconds to write the last lines
REOPEN, CLOSE = "reopen", "close"  # instead of a line


class AuditLog:
    """Writes what happens to a file, or to the ordinary log if there is none."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file, or raise `OSError`."""
        self._path = path
        self._file = -1 if path is None else _open(path)
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._all_refusals = RateBucket(MAX_REFUSALS)
        self._sources: OrderedDict[str, RateBucket] = OrderedDict()
        self._left_out = 0
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path | None:
        return self._path

    def record(self, event: str, fields: Mapping[str, Json]) -> None:
        """Record what an administrator did, or what happened to the keys."""
        if self._path is None:
            log.info("%s %s", event, _encode(fields))
        else:
            self._write(event, fields)

    def record_refusal(self, source: str, fields: Mapping[str, Json]) -> None:
        """Record that a request was refused, unless there are too many of them."""
        if self._path is None:
            return
        if not self._has_room(source):
            self._left_out += 1
            return
        if self._left_out:
            self._write("refusals_left_out", {"count": self._left_out})
            self._left_out = 0
        self._write("refusal", fields)

    def reopen(self) -> None:
        """Close the file, and open the one that has its name now."""
        if self._path is not None:
            self._put(REOPEN)

    def close(self) -> None:
        if self._left_out:
            self._write("refusals_left_out", {"count": self._left_out})
            self._left_out = 0
        if self._thread is not None:
            self._lines.put(CLOSE)
            self._thread.join(CLOSE_TIMEOUT)
            self._thread = None
        elif self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _has_room(self, source: str) -> bool:
        bucket = self._sources.pop(source, None) or RateBucket(MAX_REFUSALS_PER_SOURCE)
        self._sources[source] = bucket
        if len(self._sources) > MAX_SOURCES:
            self._sources.popitem(last=False)
        if bucket.remaining < 1 or self._all_refusals.remaining < 1:
            return False
        bucket.take(1)
        self._all_refusals.take(1)
        return True

    def _write(self, event: str, fields: Mapping[str, Json]) -> None:
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._put(_encode({"time": moment, "event": event, **fields}))

    def _put(self, line: str) -> None:
        if self._file < 0 or self._lines.qsize() >= MAX_WAITING:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
            self._thread.start()
        self._lines.put(line)

    def _run(self) -> None:
        file, failed = self._file, False
        while (line := self._lines.get()) != CLOSE:
            try:
                if line == REOPEN:
                    file = self._open_again(file)
                else:
                    os.write(file, f"{line}\n".encode())
                failed = False
            except OSError as error:
                if not failed:
                    log.error("cannot write the audit log: %s", error.strerror or error)
                failed = True
        os.close(file)

    def _open_again(self, file: int) -> int:
        opened = _open(self._path) if self._path is not None else file
        os.close(file)
        return opened


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _encode(fields: Mapping[str, Json]) -> str:
    present = {name: value for name, value in fields.items() if value not in (None, "")}
    return json.dumps(present, ensure_ascii=False)
