"""The loop of a worker process: it reads tasks from its parent and writes a result for each.

A first, empty frame says that everything is imported. The process ends when the parent closes the
socket.

The kernel enforces the limits, so no library can block them: a limit on the address space of the
process, and for each task a timer of processor time, whose signal ends the process. A limit on wall
clock time would blame the task for an engine that keeps the processors busy. A second timer, of
wall clock time and far longer, ends a process that hangs and whose parent is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from dragoman.processes.child import ignore_interrupts, limit_memory, open_parent_connection
from dragoman.processes.framing import encode_frame, read_frame

WALL_CLOCK_FACTOR = 4  # wall clock seconds allowed per second of processor time, on a busy machine


def apply_process_limits(memory: int) -> None:
    """Limit this process as far as the operating system can, before it imports anything large."""
    ignore_interrupts()
    for name in ("SIGPROF", "SIGALRM"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    limit_memory(memory)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")


def uses_too_much_memory(memory: int) -> bool:
    """Whether earlier tasks left too little memory for another."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    except OSError:
        return False
    return pages * os.sysconf("SC_PAGE_SIZE") > memory // 2


def serve_tasks(handle: Callable[[bytes], bytes], seconds: float) -> None:
    """Do the tasks of the parent, each within `seconds` of processor time; then exit."""
    stream = open_parent_connection().makefile("rwb")
    with contextlib.suppress(ConnectionError):
        stream.write(encode_frame(b""))
        stream.flush()
        while (task := read_frame(stream)) is not None:
            _set_timers(seconds)
            result = handle(task)
            _set_timers(0)
            stream.write(encode_frame(result))
            stream.flush()
    sys.stderr.flush()
    os._exit(0)  # skip interpreter shutdown: nothing here needs it


def _set_timers(seconds: float) -> None:
    """Start the timers that end this process; 0 stops them."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 2 * WALL_CLOCK_FACTOR * seconds)
