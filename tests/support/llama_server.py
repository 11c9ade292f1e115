"""llama.cpp's own server as a separate process, from the wheel that has it.

Run as a program it serves a model until its input is closed: `python -m tests.support.llama_server
MODEL SLOTS CONTEXT`. It prints its address. The context is shared by the slots.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT


@contextmanager
def run_llama_server(model: Path, slots: int = 2, context: int = 8192) -> Iterator[str]:
    """Serve a model in another process, and yield the address."""
    command = [sys.executable, "-m", "tests.support.llama_server"]
    process = subprocess.Popen(
        [*command, str(model), str(slots), str(context)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, "llama-server did not start"
        yield url
    finally:
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def start(model: str, slots: int, context: int) -> Any:
    """Start a server in this process, and return it with its address (`listening_address`)."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel, params.n_ctx = slots, context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # tests use all cores
    return xllamacpp.Server(params)


if __name__ == "__main__":
    server = start(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(server.listening_address, flush=True)
    sys.stdin.read()
