"""Runs `dragoman serve` as an operator does, in a child process."""

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


class ServerProcess(NamedTuple):
    """A listening server and its process, whose output tests read."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def run_server(*arguments: str) -> Iterator[ServerProcess]:
    with run_listening([*DRAGOMAN, "serve", "--port", "0", *arguments]) as server:
        yield server


@contextmanager
def run_listening(command: list[str]) -> Iterator[ServerProcess]:
    """Run a command until it listens; it is killed at the end."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield ServerProcess(process, read_until(process, r"Listening on (\S+)"))
        finally:
            if process.poll() is None:
                process.kill()


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    """Read the output of a process up to a line that matches."""
    assert process.stdout is not None
    output = []
    for line in process.stdout:
        output.append(line)
        if match := re.search(pattern, line):
            return match[1] if match.groups() else match[0]
    raise AssertionError("".join(output))


def list_child_pids(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def list_listening_addresses(*pids: int) -> list[str]:
    """List the addresses of the TCP sockets that these processes listen on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed in between
                if match := re.match(r"socket:\[(\d+)\]", os.readlink(link)):
                    inodes.add(match[1])
    assert inodes
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


@contextmanager
def run_engine_server(
    options: str = "", *, open_files: int | None = None
) -> Iterator[ServerProcess]:
    """Run a program that serves a scripted engine; `options` are those of `dragoman.serve`.

    `open_files` limits its file descriptors.
    """
    imports = "import os, sys, time, dragoman, dragoman.testing as t"
    with run_engine_program(f"{imports}; dragoman.serve({options})", open_files) as server:
        yield server


@contextmanager
def run_engine_program(program: str, open_files: int | None = None) -> Iterator[ServerProcess]:
    """Run a program that serves an engine of its own."""
    command = [sys.executable, "-c", program]
    if open_files is not None:
        command = ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", *command]
    with run_listening(command) as server:
        yield server
