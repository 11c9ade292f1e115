"""Runs programs in Linux name spaces of their own: another network, other file systems."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

from tests.support.paths import ROOT

UNSHARE = ("unshare", "--map-root-user")


@cache
def can_unshare(kind: str) -> bool:
    """Whether this machine gives a program a name space of this kind, `net` or `mount`."""
    if shutil.which("unshare") is None:
        return False
    command = [*UNSHARE, f"--{kind}", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_unshared(kind: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a name space, with its output captured."""
    return subprocess.run(
        [*UNSHARE, f"--{kind}", *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        check=False,
    )
