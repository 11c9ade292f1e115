"""A server in a process of its own, with a scripted engine, for faults of processes.

    python -m tests.support.fault_server PLAN

PLAN is the JSON of a `ServerPlan`. The engine is in the server's process or, as the default one is,
in a child of it. `run_plan` starts a server, and its `FaultServer` sends signals and finds what a
server leaves behind.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from dragoman.cli.serving import serve_engine
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.http.server import run_event_loop
from dragoman.testing import scripted
from tests.support.paths import ROOT
from tests.support.server_process import list_child_pids
from tests.support.serving import poll_until

SCRIPTED = "dragoman.testing.scripted:create"
ACTIVITY = "activity: "  # starts the line that SIGUSR1 makes the server write
MEMORY = signal.SIGRTMIN  # makes the server write what its live objects take
MALLOC_BYTES = "bytes from malloc = "
OBJECT_BYTES = re.compile(r"# bytes in allocated blocks +=([ \d,]+)")  # as CPython writes it


class ServerPlan(Struct, kw_only=True):
    """What the server serves, and how."""

    engine: dict[str, Any] = {}  # of `dragoman.testing.scripted.create`
    options: dict[str, Any] = {}  # of `dragoman.serve`
    in_child: bool = False
    factory: str = SCRIPTED  # of the engine in a child process
    timing: Timing = Timing()


class Activity(Struct):
    """The tasks of the event loop and the threads of a process, by name."""

    tasks: list[str]
    threads: list[str]


class AllocatorCounts(ctypes.Structure):
    """The `struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks"),
            *("fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class FaultServer:
    """A server process, and what it writes."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        self.client = httpx.Client(base_url=url, timeout=30)
        self.lines: list[str] = []  # of its log
        self.started_children = list_child_pids(process.pid)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        if process.stderr is not None:
            self._reader.start()

    def wait_for_end(self) -> None:
        """Wait until the process has ended and its log is read."""
        self.process.wait(30)
        if self._reader.is_alive():
            self._reader.join(30)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def log(self) -> str:
        return "".join(list(self.lines))

    def wait_for_log(self, text: str) -> None:
        poll_until(lambda: text in self.log)

    def list_children(self) -> list[int]:
        return list_child_pids(self.process.pid)

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)

    def post(self, path: str, body: dict[str, Any], **fields: Any) -> httpx.Response:
        return self.client.post(path, json=body, **fields)

    def list_activity(self) -> Activity:
        """Ask the server which tasks and threads it has."""
        before = len(self.lines)
        self.send_signal(signal.SIGUSR1)
        poll_until(lambda: any(line.startswith(ACTIVITY) for line in self.lines[before:]))
        line = next(line for line in self.lines[before:] if line.startswith(ACTIVITY))
        return msgspec.json.decode(line.removeprefix(ACTIVITY), type=Activity)

    def measure_live_bytes(self) -> int:
        """Have the server collect its garbage, and return how many bytes are in use then."""
        before = len(self.lines)
        self.send_signal(MEMORY)
        poll_until(lambda: any(line.startswith(MALLOC_BYTES) for line in self.lines[before:]))
        text = "".join(self.lines[before:])
        objects = OBJECT_BYTES.search(text)
        assert objects is not None, text
        malloc = text.rpartition(MALLOC_BYTES)[2].split()[0]
        return int(objects[1].replace(",", "")) + int(malloc)

    def count_restarts(self) -> int:
        """Return how often the engine was restarted."""
        page = self.client.get("/metrics").text
        counts = re.findall(r"^dragoman_engine_restarts_total\S* (\S+)$", page, re.MULTILINE)
        assert counts, page
        return int(sum(map(float, counts)))

    def check_serves(self, key: str | None = None) -> None:
        """Check that the server answers a chat."""
        body = {"model": "scripted", "messages": [{"role": "user", "content": "quick"}]}
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        response = self.post("/v1/chat/completions", body, headers=headers)
        assert response.status_code == 200, response.text


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def run_plan(
    plan: ServerPlan,
    *,
    prefix: tuple[str, ...] = (),
    prepare: Callable[[], None] | None = None,
    stderr: Any = subprocess.PIPE,
) -> Iterator[FaultServer]:
    """Run a server; `prepare` runs in its process first, and `prefix` starts the command."""
    text = msgspec.json.encode(plan).decode()
    with subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.support.fault_server", text],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=ROOT,
        env={**os.environ, "DRAGOMAN_STORE": "sqlite://"},
        preexec_fn=prepare,  # sets limits
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Listening on "), line
        server = FaultServer(process, line.split()[2])
        try:
            yield server
        finally:
            server.client.close()
            if process.poll() is None:
                process.kill()
            server.wait_for_end()


def report_activity() -> None:
    tasks = [getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()]
    threads = [thread.name for thread in threading.enumerate()]
    native = len(list(Path("/proc/self/task").iterdir())) - len(threads)  # have no names
    activity = Activity(sorted(tasks), sorted(threads) + ["native"] * native)
    print(ACTIVITY + msgspec.json.encode(activity).decode(), file=sys.stderr, flush=True)


def report_memory() -> None:
    """Write what live objects take: the small ones of CPython, and all that malloc has given."""
    gc.collect()
    sys._debugmallocstats()
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = AllocatorCounts
    counts = library.mallinfo2()
    print(f"{MALLOC_BYTES}{counts.uordblks + counts.hblkhd}", file=sys.stderr, flush=True)


async def serve(plan: ServerPlan) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, report_activity)
    loop.add_signal_handler(MEMORY, report_memory)
    await loop.getaddrinfo("localhost", 80)  # starts the threads of libuv, which stay: four
    options = {"name": "scripted", "port": 0, **plan.options}
    if not plan.in_child:
        await serve_engine.serve(scripted.create(**plan.engine), options, raises_signals=False)
        return
    engine = SubprocessEngine(plan.factory, plan.engine, name="scripted", timing=plan.timing)
    await engine.start()
    try:
        await serve_engine.serve(engine, options, raises_signals=False)
    finally:
        await engine.aclose()


if __name__ == "__main__":
    run_event_loop(serve(msgspec.json.decode(sys.argv[1], type=ServerPlan)))
