"""What is a hang of an engine and what is not, tick by tick, and over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dragoman.engines.step_queue import StepQueue
from dragoman.engines.subprocess.messages import EmbedInputs, TokenizeText
from dragoman.engines.subprocess.progress import ProgressWatch, make_call
from dragoman.types import Job, Step
from tests.support.paths import ROOT
from tests.support.server_process import list_child_pids
from tests.support.serving import poll_until
from tests.support.supervised_engine import FAULTY, HANG_TIMEOUT, SupervisedServer, serve_supervised

pytestmark = pytest.mark.slow

TIMEOUT = 20.0


class FakeEngine:
    """The calls of an engine, and a clock that ticks once a second."""

    def __init__(self, *, has_probe: bool = False) -> None:
        self.watch = ProgressWatch(TIMEOUT, has_probe)
        self.queues: list[StepQueue] = []

    def start(self, prompt: list[int] | str = "hi") -> StepQueue:
        queue = StepQueue()
        self.queues.append(queue)
        job = Job(id=f"job-{len(self.queues)}", prompt=prompt)
        self.watch.add(make_call(len(self.queues), "generate", job, queue))
        return queue

    def run(self, seconds: int, act: Callable[[int], None] = lambda second: None) -> int | None:
        """Tick until the watch finds a hang; return when, or None if it does not."""
        for second in range(1, seconds + 1):
            self.watch.start_probe()
            act(second)
            self.watch.tick(1.0)
            if self.watch.is_hung():
                return second
        return None


def step(queue: StepQueue) -> None:
    queue.put([Step(text="x", tokens=1)])


def take(queue: StepQueue) -> None:
    """Take all steps as a reader does, without waiting for any."""
    with pytest.raises(StopIteration):
        queue.take().send(None)


def test_a_job_without_steps_is_a_hang() -> None:
    engine = FakeEngine()
    queue = engine.start()
    step(queue)
    assert engine.run(60) == TIMEOUT + 1
    assert [call.describe() for call in engine.watch.involved_calls] == ["generate job-1"]


def test_no_work_is_no_hang() -> None:
    assert FakeEngine().run(1000) is None


@pytest.mark.parametrize("has_probe", [False, True])
@pytest.mark.parametrize("reads", [True, False], ids=["fast reader", "slow reader"])
def test_steps_are_progress_whether_they_are_read_or_not(has_probe: bool, reads: bool) -> None:
    engine = FakeEngine(has_probe=has_probe)
    queue = engine.start()

    def act(second: int) -> None:
        if second % 15 == 0:
            step(queue)
            if reads:
                take(queue)

    assert engine.run(1000, act) is None


def test_a_job_that_waits_for_a_slot_is_no_hang_while_another_makes_progress() -> None:
    engine = FakeEngine()
    busy, _waiting = engine.start(), engine.start()
    assert engine.run(1000, lambda second: step(busy)) is None


def test_long_prompts_are_given_time_on_a_slow_machine() -> None:
    """8 prompts of 100,000 tokens at 20 tokens a second, by an engine that reports no progress."""
    engine = FakeEngine()
    queues = [engine.start([5] * 100_000) for _ in range(8)]

    def act(second: int) -> None:
        if second % 5000 == 0:
            step(queues[second // 5000 - 1])

    assert engine.run(40_000, act) is None


def test_a_short_prompt_is_given_little_time() -> None:
    engine = FakeEngine()
    engine.start([5] * 100)
    assert (engine.run(1000) or 0) <= 30


def test_probes_that_are_answered_are_progress() -> None:
    """A prompt of any length: each step of the engine takes 15 seconds, so do the probes."""
    engine = FakeEngine(has_probe=True)
    engine.start([5] * 100_000)

    def act(second: int) -> None:
        if second % 15 == 0:
            engine.watch.end_probe(0.0)

    assert engine.run(10_000, act) is None


@pytest.mark.parametrize(("step_seconds", "noticed"), [(0.0, 20), (5.0, 20), (10.0, 30)])
def test_slow_steps_extend_the_limit(step_seconds: float, noticed: int) -> None:
    engine = FakeEngine(has_probe=True)
    engine.start([5] * 100_000)
    assert engine.run(1) is None
    engine.watch.end_probe(step_seconds)
    engine.run(1)
    assert engine.run(100) in (noticed, noticed + 1)


def test_a_probe_is_sent_at_the_start_and_for_calls_that_wait() -> None:
    engine = FakeEngine(has_probe=True)
    assert engine.watch.start_probe()
    engine.watch.end_probe(0.0)
    queue = engine.start()
    for _ in range(10):
        step(queue)
        engine.watch.tick(1.0)
        assert not engine.watch.start_probe()
    engine.watch.tick(1.0)
    assert engine.watch.start_probe()
    assert not engine.watch.start_probe(), "one at a time"


def test_a_hang_is_found_after_its_only_job_is_cancelled() -> None:
    engine = FakeEngine(has_probe=True)
    engine.start()
    engine.run(5)
    engine.watch.remove(1, is_cancelled=True)
    assert engine.run(60) == TIMEOUT - 5
    assert [call.describe() for call in engine.watch.involved_calls] == ["generate job-1"]


@pytest.mark.parametrize(("steps", "hang"), [(1, None), (0, TIMEOUT)])
def test_jobs_that_are_cancelled_after_a_step_are_progress(steps: int, hang: int | None) -> None:
    engine = FakeEngine()
    engine.start()

    def replace_job(second: int) -> None:
        for _ in range(steps):
            step(engine.queues[-1])
        engine.watch.remove(second, is_cancelled=True)
        engine.start()

    assert engine.run(60, replace_job) == hang


def test_a_cancelled_job_is_forgotten_when_the_engine_makes_progress() -> None:
    engine = FakeEngine(has_probe=True)
    engine.start()
    engine.run(5)
    engine.watch.remove(1, is_cancelled=True)
    engine.watch.end_probe(0.0)
    engine.run(1)
    assert engine.watch.involved_calls == []
    assert engine.run(1000) is None


@pytest.mark.parametrize(
    "content", [EmbedInputs(1, ["hi"]), EmbedInputs(1, [[5, 6]]), TokenizeText(1, "hi", False)]
)
def test_calls_without_a_result_are_hangs(content: EmbedInputs | TokenizeText) -> None:
    engine = FakeEngine()
    kind: Any = "embed" if isinstance(content, EmbedInputs) else "tokenize"
    engine.watch.add(make_call(1, kind, content))
    assert (engine.run(1000) or 0) <= TIMEOUT + 1


def test_a_job_that_gets_nothing_from_a_living_engine_is_stuck_alone() -> None:
    engine = FakeEngine(has_probe=True)
    stuck, busy, _waiting = engine.start(), engine.start(), engine.start()
    step(stuck)
    found = []

    def act(second: int) -> None:
        step(busy)
        engine.watch.end_probe(0.0)
        found.append([call.number for call in engine.watch.find_stuck_calls()])

    assert engine.run(100, act) is None
    assert found[50] == []
    assert found[70] == [1]


# Over HTTP, with a timeout of a fraction of a second

WAIT = HANG_TIMEOUT / 2
LONG = f"wait:{3 * HANG_TIMEOUT}"
HARMLESS = {
    "steps that take long, as under a slow grammar": f"{f'step wait:{WAIT} ' * 5}",
    "a long prompt without a step": f"{LONG} step {'word ' * 200}",
    "admission that takes long": f"admit-{LONG} step {'word ' * 200}",
}


@pytest.fixture(scope="module")
def server() -> Iterator[SupervisedServer]:
    with serve_supervised() as server:
        yield server


@pytest.fixture(scope="module")
def probed() -> Iterator[SupervisedServer]:
    with serve_supervised("create_probed_prompted") as server:
        yield server


@pytest.mark.parametrize("prompt", HARMLESS.values(), ids=HARMLESS)
def test_slow_work_is_no_hang(server: SupervisedServer, prompt: str) -> None:
    pid = server.engine.pid
    assert server.complete(prompt).status_code == 200
    assert server.engine.pid == pid


def test_an_engine_that_answers_probes_may_take_long(probed: SupervisedServer) -> None:
    pid = probed.engine.pid
    assert probed.complete(f"{LONG} step").status_code == 200
    assert probed.engine.pid == pid


def test_waiting_for_a_slot_inside_the_engine_is_no_hang(server: SupervisedServer) -> None:
    pid = server.engine.pid
    with ThreadPoolExecutor(2) as pool:
        busy = f"lock {f'step wait:{WAIT / 2} ' * 12}"
        answers = [pool.submit(server.complete, prompt) for prompt in (busy, "lock step")]
        assert [answer.result().status_code for answer in answers] == [200, 200]
    assert server.engine.pid == pid


def test_a_client_that_reads_slowly_is_no_hang(server: SupervisedServer) -> None:
    pid = server.engine.pid
    body = {"model": "scripted", "prompt": f"{f'step wait:{WAIT / 2} ' * 8}", "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        time.sleep(3 * HANG_TIMEOUT)  # what is tested is that this takes long
        assert "[DONE]" in response.read().decode()
    assert server.engine.pid == pid


@pytest.mark.parametrize("prompt", ["step hang", "hang", "admit-hang", "step block:60"])
def test_hangs_are_noticed_wherever_they_are(server: SupervisedServer, prompt: str) -> None:
    failed = server.complete(prompt)
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_down")
    assert server.complete("step").status_code == 200


def test_a_stuck_call_fails_alone(probed: SupervisedServer) -> None:
    pid = probed.engine.pid
    failed = probed.complete("step alone")
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "engine_error")
    assert probed.engine.pid == pid


def test_a_hang_is_noticed_although_its_client_is_gone(probed: SupervisedServer) -> None:
    pid = probed.engine.pid
    with pytest.raises(httpx.ReadTimeout):
        probed.client.post(
            "/v1/completions", json={"model": "scripted", "prompt": "step hang"}, timeout=WAIT
        )
    poll_until(lambda: probed.engine.pid not in (None, pid))
    assert probed.count_restarts() == {"hung": 1}


PARENT = """
import asyncio, sys
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.types import Job

async def main():
    timing = Timing(hang_timeout=float(sys.argv[2]))
    engine = SubprocessEngine(sys.argv[1], {}, name="paused", timing=timing)
    await engine.start()
    job = Job(id="job", prompt=sys.argv[3])
    print(len([step async for step in engine.generate(job)]), engine.restarts, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("with_child", [False, True], ids=["parent alone", "both processes"])
def test_a_pause_of_the_server_is_no_hang_of_the_engine(with_child: bool) -> None:
    """SIGSTOP, as a debugger or a suspended laptop does, for several times the timeout."""
    prompt = f"{f'step wait:{WAIT / 2} ' * 12}"
    command = [sys.executable, "-c", PARENT, f"{FAULTY}:create_prompted", str(HANG_TIMEOUT), prompt]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as parent:
        poll_until(lambda: len(list_child_pids(parent.pid)) == 1)
        time.sleep(2 * HANG_TIMEOUT)  # so that the job runs
        pids = [parent.pid, *(list_child_pids(parent.pid) if with_child else ())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(4 * HANG_TIMEOUT)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        output, _ = parent.communicate(timeout=60)
    assert output.split() == ["13", "0"]
