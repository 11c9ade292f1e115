"""A scripted worker in a process of its own, which can be stopped and continued.

Run as a program it serves until its input is closed: `python -m tests.support.worker_process KIND
TEXT`. It prints its address.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dragoman.testing import Reply, ScriptedWorker
from tests.support.paths import ROOT

PACE = 0.005


class WorkerProcess(NamedTuple):
    url: str
    pid: int


@contextmanager
def run_worker_process(kind: str, text: str) -> Iterator[WorkerProcess]:
    """Run a worker that writes a character every few milliseconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.worker_process", kind, text],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield WorkerProcess(process.stdout.readline().strip(), process.pid)
    finally:
        process.kill()  # it may be stopped
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def main(kind: str, text: str) -> None:
    reply = Reply(text, chunks="characters")
    async with ScriptedWorker(kind, reply, context=4096, pace=PACE) as worker:  # type: ignore[arg-type]
        print(worker.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
