"""Reserves space on the disk, so that rows can be deleted when the disk is full.

SQLite writes before it frees, so on a full disk even a deletion fails. Then a file of a few
megabytes next to the database is removed, and the deletion succeeds. The file is created again as
soon as there is room.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

log = logging.getLogger("dragoman.store")
RESERVE_BYTES = 8 << 20


class DiskReserve:
    """A file that takes up space until it is released. Without a path there is none."""

    def __init__(self, path: Path | None, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size

    def hold(self) -> None:
        """Create the file, unless it exists or there is no room for it."""
        if self._path is None or self._has_full_size(self._path):
            return
        try:
            descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            finally:
                os.close(descriptor)
        except OSError:  # the disk is full, or allocates no space in advance
            self.release()

    def release(self) -> bool:
        """Remove the file; False if there was none."""
        if self._path is None or not self._path.exists():
            return False
        with contextlib.suppress(OSError):
            self._path.unlink()
        return not self._path.exists()

    def _has_full_size(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return path.stat().st_size >= self._size
        return False
