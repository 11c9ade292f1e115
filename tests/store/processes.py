"""Python processes of tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from tests.support.paths import ROOT


@contextlib.contextmanager
def start_python(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        with process:
            pass
