"""An upstream server whose process is stopped (SIGSTOP) and continued: faults 5 and 6."""

from __future__ import annotations

import os
import signal

import pytest

from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.engines.remote.settings import RemoteSettings, Upstream
from dragoman.errors import EngineDown
from dragoman.testing import ByteTokenizer
from tests.support.remote_engines import in_event_loop, make_job
from tests.support.worker_process import run_worker_process

TEXT = "one two three four five six seven eight nine ten"


async def count_tokens(engine: RemoteEngine, pid: int, stop_after: int, counts: list[int]) -> None:
    """Run a job, and stop the server after so many tokens."""
    if not stop_after:
        os.kill(pid, signal.SIGSTOP)
    async for step in engine.generate(make_job()):
        assert step.finish is None
        counts.append(step.tokens)
        if sum(counts) >= stop_after:
            os.kill(pid, signal.SIGSTOP)


@pytest.mark.slow
def test_a_server_that_was_stopped_comes_back() -> None:
    with run_worker_process("llama-server", TEXT) as worker:
        stop_and_continue(worker.url, worker.pid)


@in_event_loop
async def stop_and_continue(url: str, pid: int) -> None:
    settings = RemoteSettings(
        url=url, stall_timeout=2.0, connect_timeout=2.0, first_retry_delay=0.02, prefill_rate=1e6
    )
    upstream = Upstream(protocol="llama-server", model="scripted", context=4096)
    engine = await connect(settings, upstream, ByteTokenizer().vocabulary)
    try:
        for stop_after in (3, 0):
            counts: list[int] = []
            with pytest.raises(EngineDown):
                await count_tokens(engine, pid, stop_after, counts)
            assert bool(counts) == bool(stop_after)
            assert engine.failure == "stalled"
            assert engine.running_requests == 0
            os.kill(pid, signal.SIGCONT)
            await engine.health.wait_ready()  # by a token that it has generated
    finally:
        await engine.aclose()
