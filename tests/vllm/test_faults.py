"""Kill, hang and cancel: jobs fail or end at once, and the engine serves the next ones."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.measure import list_process_tree
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.errors import EngineDown
from dragoman.types import DEFAULT_SAMPLING, Job, Sampling
from tests.support.vllm_model import make_vllm_engine

DUMMY = {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 2}}
RESTART_SECONDS = 400.0


def make_job(name: str, max_tokens: int = 400) -> Job:
    """Make a job with a prompt of its own: one that was there at two crashes is refused."""
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    prompt = [1000 + byte for byte in name.encode()]
    return Job(id=name, prompt=prompt, sampling=sampling.with_defaults(DEFAULT_SAMPLING))


def list_descendants(pid: int) -> list[int]:
    return list_process_tree(pid)[1:]  # of all threads


def find_core(pid: int) -> int:
    """Return the process of the engine core."""
    for child in list_descendants(pid):
        name = (
            Path(f"/proc/{child}/cmdline").read_bytes() + Path(f"/proc/{child}/comm").read_bytes()
        )
        if b"EngineCor" in name:
            return child
    raise AssertionError("there is no engine core")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


class Runner:
    """An engine with dummy weights, and the loop it runs in."""

    def __init__(self) -> None:
        self.loop = asyncio.Runner()
        self.engine: SubprocessEngine = make_vllm_engine(hang_timeout=15.0, arguments=DUMMY)
        self.engine._timing = Timing(
            first_restart_delay=0.01, restart_wait=RESTART_SECONDS, hang_timeout=15.0
        )
        self.loop.run(self.engine.start())

    def run_and(self, harm: Callable[[], None], name: str) -> type[object]:
        """Run two jobs, do harm after the first step, and return what they fail with."""

        async def read(number: int, started: asyncio.Event) -> None:
            async for _ in self.engine.generate(make_job(f"{name}-{number}", 900)):
                started.set()

        async def run() -> type[object]:
            started = asyncio.Event()
            tasks = [asyncio.create_task(read(number, started)) for number in range(2)]
            await started.wait()
            harm()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert len({type(result) for result in results}) == 1, results
            return type(results[0])

        return self.loop.run(run())

    def count_tokens(self, max_tokens: int = 3) -> int:
        async def run() -> int:
            job = make_job("after", max_tokens)
            return sum([step.tokens async for step in self.engine.generate(job)])

        return self.loop.run(run())


@pytest.fixture(scope="module")
def shared_runner(_prepare: None) -> Iterator[Runner]:
    running = Runner()
    yield running
    running.loop.run(running.engine.aclose())
    running.loop.close()


@pytest.fixture
def runner(shared_runner: Runner) -> Runner:
    """Return the engine once it is up, whatever the test before did to it."""
    assert shared_runner.count_tokens() == 3
    return shared_runner


def test_a_killed_process_fails_its_jobs_and_is_replaced(runner: Runner) -> None:
    pid = runner.engine.pid
    assert pid is not None
    family = [pid, *list_descendants(pid)]
    before = runner.engine.restarts_by_failure["died"]
    assert runner.run_and(lambda: os.kill(pid, signal.SIGKILL), "killed") is EngineDown
    assert runner.count_tokens() == 3
    assert runner.engine.restarts_by_failure["died"] == before + 1
    assert not [member for member in family if is_alive(member)]


def test_a_killed_engine_core_is_noticed(runner: Runner) -> None:
    assert runner.engine.pid is not None
    core = find_core(runner.engine.pid)
    assert runner.run_and(lambda: os.kill(core, signal.SIGKILL), "core") is EngineDown
    assert runner.count_tokens() == 3


def test_a_hanging_engine_core_is_noticed(runner: Runner) -> None:
    """vLLM's own health check still succeeds then."""
    assert runner.engine.pid is not None
    core = find_core(runner.engine.pid)
    before = runner.engine.restarts_by_failure["hung"]
    assert runner.run_and(lambda: os.kill(core, signal.SIGSTOP), "hang") is EngineDown
    assert runner.count_tokens() == 3
    assert runner.engine.restarts_by_failure["hung"] == before + 1
    assert not is_alive(core)


def test_a_cancelled_job_leaves_the_scheduler(runner: Runner) -> None:
    """The numbers are those of the scheduler's last step, which runs the next job alone."""

    async def run() -> list[float]:
        streams = [runner.engine.generate(make_job(f"cancelled-{n}", 1000)) for n in range(4)]
        await asyncio.gather(*map(anext, streams))
        await asyncio.gather(*(stream.aclose() for stream in streams))
        running = []
        for number in range(30):  # until the next numbers have arrived
            async for _ in runner.engine.generate(make_job(f"next-{number}", 300)):
                running.append(runner.engine.statistics.get("running_requests", 0.0))  # noqa: PERF401
            if running[-1] == 1.0:
                break
        return running

    assert runner.loop.run(run())[-1] == 1.0
