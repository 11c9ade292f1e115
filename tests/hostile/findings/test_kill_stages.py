"""The engine is killed at every stage of its life, also twice in a row: it always comes back.

Whatever the moment, requests that were running end with an error that says when to come back, those
that only waited are answered, and afterwards the engine is ready and no slot is taken.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.support.serving import poll_until
from tests.support.supervised_engine import PATIENT, SupervisedServer, serve_supervised

BEFORE_READY = ("create", "ready")
IDLE = ("ping", "probe")
BUSY = ("admit", "start", "step", "end", "cancel", "embed")
SLEEPING = ("sleep", "wake")
STAGES = (*BEFORE_READY, *IDLE, *BUSY, *SLEEPING)
# the first process must come up, so that it does not count as a model that cannot be loaded
PLANS = [
    *(["start", stage] for stage in STAGES),
    *(["start", *pair] for pair in itertools.product(BEFORE_READY, (*BEFORE_READY, *IDLE, "step"))),
    *([stage, "create", stage] for stage in (*BUSY, *SLEEPING)),
    ["start", "create", "create", "create", "ready", "ready", "ready"],
]


class Load:
    """Clients that do all that clients do, each time with another prompt."""

    def __init__(self, server: SupervisedServer) -> None:
        self._server = server
        self._stopped = threading.Event()
        self._numbers = itertools.count()
        self.outcomes: Counter[str] = Counter()

    def run(self, folder: Path, processes: int) -> None:
        """Send requests until so many processes of the engine have started."""
        actions = (self._complete, self._stream, self._leave, self._embed, self._sleep)
        threads = [threading.Thread(target=self._repeat, args=[action]) for action in actions]
        for thread in threads:
            thread.start()
        try:
            poll_until(lambda: len(list(folder.glob("start-*"))) >= processes)
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(60)

    def _repeat(self, action: object) -> None:
        assert callable(action)
        while not self._stopped.is_set():
            self.outcomes[action()] += 1

    def _make_prompt(self) -> str:
        return f"step wait:0.01 step number-{next(self._numbers)}"

    def _complete(self) -> str:
        return classify(self._server.complete(self._make_prompt()))

    def _stream(self) -> str:
        return classify(self._server.complete(self._make_prompt(), stream=True))

    def _embed(self) -> str:
        return classify(self._server.embed(self._make_prompt()))

    def _leave(self) -> str:
        body = {"model": "scripted", "prompt": f"{self._make_prompt()} hang", "stream": True}
        with self._server.client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                return classify(response)
            next(response.iter_text(), "")
        return "left"

    def _sleep(self) -> str:
        try:
            self._server.server.run_coroutine(self._server.engine.sleep())
        except Exception as error:
            return type(error).__name__
        return "slept"


def classify(response: httpx.Response) -> str:
    if response.status_code == 503:
        assert int(response.headers["retry-after"]) >= 1
        return "refused"
    if response.status_code == 200:
        return "ended with an error" if '"engine_down"' in response.text else "answered"
    return f"{response.status_code} {response.text}"


@pytest.mark.parametrize("plan", PLANS, ids="-".join)
def test_an_engine_that_is_killed_at_any_stage_comes_back(tmp_path: Path, plan: list[str]) -> None:
    settings = {"folder": str(tmp_path), "plan": plan}
    with serve_supervised("create_staged", settings, timing=PATIENT) as server:
        load = Load(server)
        load.run(tmp_path, len(plan) + 1)
        expected = {"refused", "ended with an error", "answered", "left", "slept", "EngineDown"}
        assert set(load.outcomes) <= expected, load.outcomes
        for number in range(10):
            assert server.complete(f"step after {number}").status_code == 200
        assert server.embed("after").status_code == 200
        assert server.engine.state == "ready"
        assert server.client.get("/health/ready").status_code == 200
        poll_until(lambda: read_requests(server) == {0})
        assert sum(server.count_restarts().values()) == len(plan)


def read_requests(server: SupervisedServer) -> set[float]:
    lines = server.client.get("/metrics").text.splitlines()
    names = ("dragoman_requests_running", "dragoman_requests_waiting")
    return {float(line.split()[-1]) for line in lines if line.startswith(names)}


@pytest.mark.parametrize("failures", [1, 3])
def test_what_waits_is_answered_although_restarts_are_killed(tmp_path: Path, failures: int) -> None:
    settings = {"folder": str(tmp_path), "plan": ["start", *["create"] * failures]}
    with serve_supervised("create_staged", settings, timing=PATIENT) as server:
        assert server.complete("step").status_code == 503
        answers = [server.complete(f"step {number}").status_code for number in range(3)]
        assert answers == [200] * 3


def test_a_process_that_lives_while_the_server_is_busy_loses_nothing(tmp_path: Path) -> None:
    """On a busy server, a process may be ready and killed before the server looks at either."""
    settings = {"folder": str(tmp_path), "plan": ["start", "ready"]}
    waiting = tmp_path / "wait-1"
    waiting.touch()
    with serve_supervised("create_staged", settings, timing=PATIENT) as server:
        assert server.complete("step").status_code == 503
        poll_until((tmp_path / "start-1").exists)

        async def miss_the_life_of_a_process() -> None:
            waiting.unlink()
            process = Path("/proc") / (tmp_path / "start-1").read_text() / "stat"
            poll_until(lambda: ") Z " in process.read_text())  # blocks the event loop

        server.server.run_coroutine(miss_the_life_of_a_process())
        assert server.complete("step again").status_code == 200
        assert server.engine.state == "ready"
