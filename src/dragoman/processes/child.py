"""The first steps of a child process, before it runs anything else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = 0, 1, 2
PR_SET_PDEATHSIG = 1  # the option of prctl(2)


def open_parent_connection() -> socket.socket:
    """Take over the socket to the parent, which the child is given as its standard input.

    Standard input is `/dev/null` afterwards, so that no library reads our frames.
    """
    connection = socket.socket(fileno=os.dup(STANDARD_INPUT))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STANDARD_INPUT)
    os.close(null)
    return connection


def ignore_interrupts() -> None:
    """Ignore Ctrl-C: the parent decides when a child ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, where the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def end_group_with_process() -> None:
    """Have all processes of this group killed when this process ends, in whatever way.

    Libraries start processes of their own, which would keep a GPU. A forked process waits for the
    end of a pipe that only this one holds. To be called before there are threads, by the leader of
    the group.
    """
    reading_end, writing_end = os.pipe()
    if os.fork():
        os.close(reading_end)  # the other end stays open as long as this process lives
        return
    os.close(writing_end)
    for number in (STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR):
        with contextlib.suppress(OSError):
            os.close(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.read(reading_end, 1)
    os.killpg(0, signal.SIGKILL)


def limit_memory(limit: int) -> None:
    """Limit the address space to `limit` bytes and write no core files, where that is possible."""
    try:
        import resource
    except ImportError:
        return
    for kind, wanted in ((resource.RLIMIT_AS, limit), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (wanted, hard))
