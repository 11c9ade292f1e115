"""`dragoman serve` as an operator runs it, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

DRAGOMAN = [sys.executable, "-m", "dragoman"]


class Served(NamedTuple):
    """A server that listens; what it says comes from its process."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    with subprocess.Popen(
        [*DRAGOMAN, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Served(process, until(process, r"Listening on (\S+)"))
        finally:
            if process.poll() is None:
                process.kill()


def until(process: subprocess.Popen[str], pattern: str) -> str:
    """Read what a process says up to a line that matches."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.search(pattern, line):
            return found[1] if found.groups() else found[0]
    raise AssertionError("".join(said))


def child_pids(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def listening(*pids: int) -> list[str]:
    """Addresses of the TCP sockets that these processes listen on."""
    own = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed in between
                if found := re.match(r"socket:\[(\d+)\]", os.readlink(link)):
                    own.add(found[1])
    assert own
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in own]
