"""Fair measurements: pinned processes, CPU time from the kernel, alternating peers.

A server runs on one core and the client on another. CPU time is the sum over all threads of the
server and its children, in nanoseconds, from the scheduler. Peers alternate within a round, each
round yields one ratio, and the report is the median of the ratios with their range, so that a
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
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

TOKEN = " token"  # the text of every token of a scripted server
ROOT = Path(__file__).resolve().parent.parent


class Load(Struct, frozen=True, kw_only=True):
    """What the client sends to a server, and how long it measures."""

    port: int
    pid: int  # of the server, whose CPU time the client reads
    core: int
    bodies: list[str]  # one request each, all sent at once
    path: str = "/v1/chat/completions"
    window: float = 0.0  # seconds to measure once all streams run; 0 reads them to their end
    warmup: float = 0.5  # seconds to wait before the window
    counts_children: bool = True  # with the CPU time of the server's child processes


class LoadResult(Struct, kw_only=True):
    """What the client measured: in the window, or from the first request to the last byte."""

    seconds: float
    cpu_ns: int
    tokens: int
    frames: int
    first_token: list[float]  # seconds from each request to its first text
    decode_rate: list[float]  # tokens per second of each stream after its first token


class RunningPeer(Struct, frozen=True):
    """A server process that accepts requests."""

    name: str
    port: int
    pid: int


def choose_cores() -> tuple[int, int]:
    """Return a core for the server and another for the client; the same if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_post(port: int, path: str, body: str) -> bytes:
    """Return a request as bytes: a client of raw sockets costs little CPU time."""
    data = body.encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def list_process_tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    pids = [pid]
    for parent in pids:
        for task in Path(f"/proc/{parent}/task").glob("*"):
            with suppress(OSError):
                pids += map(int, (task / "children").read_text().split())
    return pids


def read_cpu_ns(pid: int, counts_children: bool = True) -> int:
    """Return the CPU time of a process, its threads and its descendants in nanoseconds."""
    total = 0
    for process in list_process_tree(pid) if counts_children else [pid]:
        for task in Path(f"/proc/{process}/task").glob("*"):
            with suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total


@contextmanager
def pin_to_core(core: int) -> Generator[None, None, None]:
    """Run processes that are started inside on that core, with all their threads and children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def run_server(
    name: str,
    command: Sequence[str],
    port: int,
    *,
    is_pinned: bool = True,
    program: Sequence[str] = (sys.executable, "-m"),
) -> Generator[RunningPeer, None, None]:
    """Run a Python module as a server on the server's core; yield when it accepts requests."""
    with tempfile.TemporaryFile() as log:
        with pin_to_core(choose_cores()[0]) if is_pinned else nullcontext():
            process = subprocess.Popen([*program, *command], cwd=ROOT, stdout=log, stderr=log)
        try:
            if not wait_until_ready(port, process):
                log.seek(0)
                raise SystemExit(f"{name} did not start:\n{log.read().decode()[-2000:]}")
            yield RunningPeer(name, port, process.pid)
        finally:
            stop(process)


def wait_until_ready(port: int, process: subprocess.Popen[bytes], timeout: float = 60) -> bool:
    """Wait until the server responds with any status but 503; return False if it does not."""
    deadline = time.monotonic() + timeout
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


def run_client(load: Load) -> LoadResult:
    """Run the client in a process of its own, on its own core."""
    client = subprocess.run(
        [sys.executable, "-m", "bench.load_client"],
        cwd=ROOT,
        input=msgspec.json.encode(load),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(client.stdout, type=LoadResult)


class Ratio(Struct, frozen=True):
    """The median of one ratio per round, with the smallest and the largest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}× ({self.low:.2f}–{self.high:.2f})"


def compute_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Divide the values of each round by each other."""
    ratios = [above / below for above, below in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))
