"""Files that clients upload: adapters and models, each named by the digest of its content.

A blob is written to a temporary file while its digest is computed, and gets its name in one step
if the digest is the expected one. So a file with a name is complete and right, whatever else
happens; two uploads of the same content do not disturb each other. What a broken upload leaves is
removed at once, after a crash by the next upload, and a blob that no model uses after a day.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dragoman.errors import BadRequest, InvalidValue, TooLarge, Unavailable
from dragoman.models.disk_errors import NOT_WRITABLE, convert_disk_error

log = logging.getLogger("dragoman.models")

DIRECTORY = "blobs"  # in the models directory
TEMPORARY = ".part-"
MAX_PART_AGE = 3600.0  # seconds since the last write of an upload that was abandoned
MAX_UNUSED_AGE = 24 * 3600.0  # seconds for which a blob may wait for its model
RESERVE = 64 << 20  # bytes that an upload leaves free on the disk
CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def parse_digest(text: str, param: str = "digest") -> str:
    """Return the hexadecimal digits of `sha256:…`, or raise an error that names the field."""
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise InvalidValue(
            f"invalid digest format: `{param}` must be `sha256:` and 64 lower-case hexadecimal "
            "digits.",
            param=param,
        )
    return match[1]


@contextlib.contextmanager
def report_disk_errors() -> Iterator[None]:
    """Turn an error of the disk into one that clients may see."""
    try:
        yield
    except OSError as error:
        log.warning("cannot change the models on disk: %s", error)
        raise convert_disk_error(error) or Unavailable(NOT_WRITABLE) from error


class BlobWriter:
    """Writes one blob. Blocks; use it in a thread. What is not committed is discarded."""

    def __init__(self, target: Path, max_size: int) -> None:
        self._target = target
        self._max_size = max_size
        self._digest = hashlib.sha256()
        self._size = 0
        handle, name = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
        self._path = Path(name)
        self._file = os.fdopen(handle, "wb")

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_size:
            raise make_too_large(self._max_size)
        with report_disk_errors():
            if shutil.disk_usage(self._target.parent).free < RESERVE + len(data):
                raise OSError(errno.ENOSPC, "no space")
            self._file.write(data)
        self._digest.update(data)

    def commit(self) -> None:
        """Give the blob its name, or raise an error if its content is not the expected one."""
        if self._digest.hexdigest() != self._target.name.removeprefix("sha256-"):
            raise BadRequest(
                "digest mismatch: the content that was sent has another digest.", param="digest"
            )
        with report_disk_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.chmod(self._path, 0o644)
            os.replace(self._path, self._target)

    def discard(self) -> None:
        """Remove what was not committed. Calling it again, or after a commit, is harmless."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class BlobStore:
    """The blobs in one directory."""

    def __init__(self, directory: Path, max_size: int) -> None:
        self.directory = directory
        self.max_size = max_size  # bytes of one blob

    def get_path(self, digits: str) -> Path:
        """Return where a blob is, or would be; `digits` come from `parse_digest`."""
        return self.directory / f"sha256-{digits}"

    def find(self, digits: str) -> Path | None:
        path = self.get_path(digits)
        return path if path.is_file() else None

    def open_writer(self, digits: str, size: int | None = None) -> BlobWriter:
        """Start to write a blob; `size` is what the client announces."""
        if size is not None and size > self.max_size:
            raise make_too_large(self.max_size)
        with report_disk_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            if size is not None and size + RESERVE > shutil.disk_usage(self.directory).free:
                raise OSError(errno.ENOSPC, "no space")
            return BlobWriter(self.get_path(digits), self.max_size)

    def add(self, content: bytes) -> Path:
        """Store a blob of ours, and return its path."""
        digits = hashlib.sha256(content).hexdigest()
        if (path := self.find(digits)) is not None:
            os.utime(path)  # it is in use from now on
            return path
        writer = self.open_writer(digits)
        try:
            writer.write(content)
            writer.commit()
        finally:
            writer.discard()
        return self.get_path(digits)

    def add_file(self, file: Path) -> str:
        """Copy a file of the operator into the store, and return its digest."""
        with file.open("rb") as source:
            digits = hashlib.file_digest(source, "sha256").hexdigest()
            if self.find(digits) is None:
                source.seek(0)
                writer = self.open_writer(digits, os.fstat(source.fileno()).st_size)
                try:
                    while chunk := source.read(CHUNK):
                        writer.write(chunk)
                    writer.commit()
                finally:
                    writer.discard()
        return f"sha256:{digits}"

    def remove_unused(self, used: set[str]) -> None:
        """Remove blobs that no model uses, unless they are new; `used` are real paths."""
        oldest = time.time() - MAX_UNUSED_AGE
        for path in self._list("sha256-"):
            with contextlib.suppress(OSError):
                if os.path.realpath(path) not in used and path.stat().st_mtime < oldest:
                    path.unlink()

    def remove(self, path: Path) -> None:
        """Remove a blob that its last model used."""
        if path.parent == Path(os.path.realpath(self.directory)):
            path.unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        oldest = time.time() - MAX_PART_AGE
        for path in self._list(TEMPORARY):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _list(self, prefix: str) -> list[Path]:
        return [path for path in self.directory.glob("*") if path.name.startswith(prefix)]


def make_too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"The file is larger than the {limit:,} bytes allowed. The server's --blob-limit can "
        "raise this."
    )
