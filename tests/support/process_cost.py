"""What a server process spends on a request: memory and processor time, of its children, too."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server_process import list_child_pids

MIB = 1 << 20


class ProcessCost:
    """What the processes needed while a block ran."""

    memory = 0  # bytes at the highest point, above what was in use before
    seconds = 0.0  # of processor time

    def __str__(self) -> str:
        return f"{self.memory / MIB:.0f} MiB, {self.seconds:.2f} s of processor time"


@contextmanager
def measure_cost(pid: int) -> Iterator[ProcessCost]:
    """Measure a process and its children."""
    pids = [pid, *list_child_pids(pid)]
    cost = ProcessCost()
    for process in pids:
        Path(f"/proc/{process}/clear_refs").write_text("5")  # resets the highest point
    before = [(read_memory(process, "VmRSS"), read_cpu_time(process)) for process in pids]
    yield cost
    for process, (memory, seconds) in zip(pids, before, strict=True):
        cost.memory += max(0, read_memory(process, "VmHWM") - memory)
        cost.seconds += read_cpu_time(process) - seconds


def read_resident_bytes(pid: int | str = "self") -> int:
    """Return how many bytes of a process are in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def read_memory(pid: int, field: str) -> int:
    """Return a field of `/proc/PID/status` in bytes."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert match is not None
    return int(match[1]) * 1024


def read_cpu_time(pid: int) -> float:
    """Return the processor time of all threads, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def wait_until_idle(pid: int) -> None:
    """Return when a process has not run for a moment."""
    busy = read_cpu_time(pid)
    for _ in range(200):
        time.sleep(0.05)
        now = read_cpu_time(pid)
        if now - busy < 0.02:
            return
        busy = now
