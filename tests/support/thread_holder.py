"""Holds one thread of another process with ptrace, while the process itself lives on.

The tracer is a process of its own: the kernel ties a hold to the thread that placed it. It releases
the thread when its standard input closes, or when it is killed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000  # __WALL of waitpid(2): wait for threads, too
HELD, FORBIDDEN = "held", "forbidden"
MEASURED_SECONDS = 0.3


class HoldForbidden(Exception):
    """The system does not allow a process to trace another one."""


def read_cpu_ticks(pid: int) -> dict[int, int]:
    """Return how long each thread of a process has run, in clock ticks."""
    ticks = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        fields = (thread / "stat").read_text().rpartition(")")[2].split()
        ticks[int(thread.name)] = int(fields[11]) + int(fields[12])
    return ticks


def find_busiest_thread(pid: int) -> int:
    """Return the thread that uses most CPU time: in an engine that generates, the one that decodes.

    The main thread, which runs Python's event loop, is left out.
    """
    before = read_cpu_ticks(pid)
    time.sleep(MEASURED_SECONDS)  # what is measured is time
    after = read_cpu_ticks(pid)
    return max(after.keys() - {pid}, key=lambda thread: after[thread] - before.get(thread, 0))


@contextmanager
def hold_thread(thread: int) -> Iterator[None]:
    """Hold a thread until the block ends; `HoldForbidden` where the system does not allow it."""
    command = [sys.executable, __file__, str(thread)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdout is not None
        answer = tracer.stdout.readline().decode().strip()
        if answer == FORBIDDEN:
            raise HoldForbidden
        assert answer == HELD
        try:
            yield
        finally:
            tracer.kill()


def main() -> None:
    thread = int(sys.argv[1])
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(PTRACE_SEIZE, thread, None, None) or ptrace(PTRACE_INTERRUPT, thread, None, None):
        print(FORBIDDEN, flush=True)
        return
    os.waitpid(thread, WALL)
    print(HELD, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
