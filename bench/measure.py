"""Fair measuring: pinned processes, CPU time from the kernel, and peers that take turns.

A server runs on one core and the client on another. CPU time is the sum over all threads of the
server and its children, in nanoseconds, from the scheduler. Peers alternate within a round, each
round gives one ratio, and what is reported is the median of the ratios with its spread, so that a
machine that is slower for a minute is slower for both.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

TOKEN = " token"  # what every scripted server says
ROOT = Path(__file__).resolve().parent.parent


class Load(Struct, frozen=True, kw_only=True):
    """What the client asks of a server, and for how long it watches."""

    port: int
    pid: int  # of the server, whose CPU time is read
    core: int
    bodies: list[str]  # one request each, all at once
    path: str = "/v1/chat/completions"
    window: float = 0.0  # seconds to watch once all streams run; 0 is until they end
    warm: float = 0.5  # seconds to wait before the window


class Report(Struct, kw_only=True):
    """What the client saw: in the window, or from the first request to the last byte."""

    seconds: float
    cpu_ns: int
    tokens: int
    frames: int
    first: list[float]  # seconds from each request to its first text
    decode: list[float]  # tokens a second of each stream after its first


class Peer(Struct, frozen=True):
    """A server that runs."""

    name: str
    port: int
    pid: int


def cores() -> tuple[int, int]:
    """One core for the server, another for the client, where there are two."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[-1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*"):
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_ns(pid: int) -> int:
    """Nanoseconds that a process, its threads and its children have run."""
    total = 0
    for one in family(pid):
        for task in Path(f"/proc/{one}/task").glob("*"):
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total


@contextmanager
def pinned(core: int) -> Generator[None, None, None]:
    """What is started inside runs on that core, all its threads and children too."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def running(name: str, command: Sequence[str], port: int) -> Generator[Peer, None, None]:
    """A server process on the server's core, from when it listens until the block ends."""
    with tempfile.TemporaryFile() as said:
        with pinned(cores()[0]):
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, stdout=said, stderr=said
            )
        try:
            if not answers(port, process):
                said.seek(0)
                raise SystemExit(f"{name} did not start:\n{said.read().decode()[-2000:]}")
            yield Peer(name, port, process.pid)
        finally:
            stop(process)


def answers(port: int, process: subprocess.Popen[bytes], patience: float = 60) -> bool:
    """Wait until the server answers, and with something else than that it is not ready."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as probe:
            probe.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            status = probe.recv(12)
            if status.startswith(b"HTTP/1.1") and not status.endswith(b"503"):
                return True
        time.sleep(0.05)
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def ask(load: Load) -> Report:
    """Run the client in a process of its own, on its own core."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.client"],
        cwd=ROOT,
        input=msgspec.json.encode(load),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Report)


class Ratio(Struct, frozen=True):
    """The median of one ratio per round, with its smallest and largest."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f}× ({self.low:.2f}–{self.high:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return Ratio(statistics.median(each), min(each), max(each))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
