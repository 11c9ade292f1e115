"""Engines that die, hang, raise, block or answer nonsense (faults 22 to 33)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dragoman import config, runtime
from dragoman.engines.subprocess.restart_schedule import Timing
from dragoman.errors import ModelBroken
from dragoman.http.server import make_app
from dragoman.models.catalog import ModelCatalog, ModelSource
from dragoman.models.model import Model
from dragoman.models.registry import ModelRegistry
from dragoman.prompt.renderer import PromptRenderer
from dragoman.testing import ByteTokenizer
from dragoman.types import Capabilities, Job, Step
from tests.http.test_readiness import serve_models
from tests.support.fake_models import get_size, write_models
from tests.support.fault_clients import STREAMS, hold_streams, make_body, read_stream
from tests.support.fault_server import FaultServer, ServerPlan, run_plan
from tests.support.faulty_engines import BlockingEngine, CountingEngine
from tests.support.hostile_http import HostileServer, check_no_leaks, serve_hostile
from tests.support.logs import collect_logs
from tests.support.server_process import list_child_pids, read_until, run_server
from tests.support.serving import make_chat, poll_until, run_app, serve_scripted
from tests.support.timing import measures_time

LIVE, READY = "/health/live", "/health/ready"
CHAT = "/v1/chat/completions"
WORDS = " ".join(f"word{number}" for number in range(200))
SCRIPT: list[dict[str, Any]] = [
    {"text": "Hello.", "when": "quick"},
    {"text": "One, two", "when": "hang", "hang_at": 2},
    {"text": WORDS, "pace": 0.02},
]
QUICK_RESTART = Timing(first_restart_delay=0.01)


@pytest.mark.slow
@measures_time
def test_fault_22_killed_engine_ends_every_stream_with_an_error(
    count_cases: Callable[[int], None],
) -> None:
    plan = ServerPlan(engine={"script": SCRIPT}, in_child=True, timing=QUICK_RESTART)
    with run_plan(plan) as server, hold_streams(server.url, 32, "tell me") as streams:
        [engine] = server.list_children()
        os.kill(engine, signal.SIGKILL)
        started_at = time.monotonic()
        ends = [stream.result(30) for stream in streams]
        seconds = time.monotonic() - started_at
        print(f"32 streams ended after {seconds:.2f} s")
        assert seconds < 5  # 1 s on a machine with nothing else to do
        assert all(end.is_complete and end.error is not None for end in ends)
        assert all(WORDS.startswith(end.text) for end in ends)
        poll_until(lambda: server.client.get(READY).status_code == 200)
        server.check_serves()
        assert server.list_children() != [engine]
    count_cases(32)


@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [True, False])
def test_fault_23_stopped_engine_is_replaced(is_busy: bool) -> None:
    timing = Timing(hang_timeout=1.0, first_restart_delay=0.01)
    plan = ServerPlan(engine={"script": SCRIPT}, in_child=True, timing=timing)
    with run_plan(plan) as server:
        [engine] = server.list_children()
        if is_busy:
            with hold_streams(server.url, 4, "tell me") as streams:
                os.kill(engine, signal.SIGSTOP)
                ends = [stream.result(30) for stream in streams]
            assert all(end.is_complete and end.error is not None for end in ends)
        else:
            os.kill(engine, signal.SIGSTOP)
            poll_until(lambda: server.list_children() not in ([engine], []))
        poll_until(lambda: server.client.get(READY).status_code == 200)
        assert server.client.get(LIVE).status_code == 200
        server.check_serves()
        assert engine not in server.list_children()


@pytest.mark.slow
def test_fault_23_readiness_is_503_while_an_engine_is_replaced() -> None:
    """With a restart that takes its time, so that the probe must see it."""
    timing = Timing(hang_timeout=0.5, first_restart_delay=2)
    plan = ServerPlan(engine={"script": SCRIPT}, in_child=True, timing=timing)
    with run_plan(plan) as server:
        [engine] = server.list_children()
        os.kill(engine, signal.SIGSTOP)
        poll_until(lambda: server.client.get(READY).status_code == 503)
        assert int(server.client.get(READY).headers["retry-after"]) >= 1
        assert server.client.get(LIVE).status_code == 200
        poll_until(lambda: server.client.get(READY).status_code == 200)


def post(server: Any, path: str, text: str, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=make_body(path, text, **fields), timeout=60)


FAILURES = [
    {"text": "Hello.", "when": "quick"},
    {"text": "a b c", "when": "at once", "raise_at": 0, "error": "ZeroDivisionError"},
    {"text": "a b c", "when": "later", "raise_at": 2, "error": "RuntimeError"},
    {"text": "a b c", "when": "memory", "raise_at": 0, "error": "MemoryError"},
    {"text": "a b c", "when": "memories", "raise_at": 2, "error": "MemoryError"},
]


@pytest.fixture(scope="module", params=[False, True], ids=["own", "child"])
def failing(request: pytest.FixtureRequest) -> Iterator[FaultServer]:
    plan = ServerPlan(engine={"script": FAILURES}, in_child=request.param)
    with run_plan(plan) as server:
        yield server


def check_failures(server: FaultServer, text: str, status: int) -> None:
    """Let requests of all wire APIs fail, one after the other; those beside them do not."""
    with ThreadPoolExecutor(1) as pool:
        for path in STREAMS:
            for streamed in (False, True):
                other = pool.submit(post, server, path, "quick", stream=streamed)
                check_failure(path, post(server, path, text, stream=streamed), status)
                assert "Hello" in other.result().text
    server.check_serves()
    assert server.client.get(READY).status_code == 200


def check_failure(path: str, response: httpx.Response, status: int) -> None:
    check_no_leaks(response.text)
    assert "ZeroDivision" not in response.text
    if response.status_code == 200:  # a stream that had begun
        end = read_stream(path, response.text)
        assert end.is_complete
        assert end.error is not None
    else:
        assert response.status_code in (status, {503: 529}.get(status, status))
        assert response.json()["error"]["message"]
        assert status != 503 or int(response.headers["retry-after"]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("text", ["at once", "later"])
def test_fault_24_exception_fails_one_request(
    failing: FaultServer, text: str, count_cases: Callable[[int], None]
) -> None:
    check_failures(failing, text, 500)
    count_cases(2 * len(STREAMS))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["memory", "memories"])
def test_fault_25_lack_of_memory_fails_one_request_with_503(
    failing: FaultServer, text: str, count_cases: Callable[[int], None]
) -> None:
    check_failures(failing, text, 503)
    count_cases(2 * len(STREAMS))


CRASHING = ServerPlan(
    factory="tests.support.faulty_engines:create_crashing", in_child=True, timing=QUICK_RESTART
)


def wait_until_ready(server: FaultServer) -> None:
    poll_until(lambda: server.client.get(READY).status_code == 200)


@pytest.mark.slow
def test_fault_26_native_crash_is_an_error_and_a_restart(
    count_cases: Callable[[int], None],
) -> None:
    crashes = ["abort", "segfault", "exit", "abort"]
    with run_plan(CRASHING) as server:
        for number, (path, crash) in enumerate(zip(STREAMS, crashes, strict=True)):
            response = post(server, path, f"{crash} {number}", stream=number % 2 == 0)
            if response.status_code == 200:
                end = read_stream(path, response.text)
                assert end.error is not None
                assert end.is_complete
            else:
                assert response.status_code in (503, 529)
            wait_until_ready(server)
            assert post(server, path, "fine").status_code == 200
            assert server.count_restarts() == number + 1
    count_cases(len(crashes))


@pytest.mark.slow
def test_fault_27_poison_request_is_refused_the_third_time(
    count_cases: Callable[[int], None],
) -> None:
    paths = ["/v1/messages", "/v1/responses"]
    with run_plan(CRASHING) as server:
        for path in paths:
            statuses = []
            for _ in range(4):
                statuses.append(post(server, path, f"abort {path}").status_code)
                wait_until_ready(server)
                assert post(server, path, "fine").status_code == 200
            assert set(statuses[:2]) <= {503, 529}
            assert set(statuses[2:]) <= {400, 422}  # as the wire API spells it
        assert server.count_restarts() == 2 * len(paths)
    count_cases(len(paths))


@pytest.mark.slow
def test_fault_28_crash_loop_is_slowed_down_and_not_ready() -> None:
    with run_plan(CRASHING) as server:
        for number in range(6):
            post(server, CHAT, f"abort {number}")
            if number < 5:
                wait_until_ready(server)
        poll_until(lambda: int(server.client.get(READY).headers.get("retry-after", 0)) > 10)
        assert server.client.get(READY).status_code == 503
        assert server.count_restarts() <= 5
        assert server.client.get(LIVE).status_code == 200
        assert server.client.get("/v1/models").status_code == 200


class OddEngine:
    """Yields the steps that the prompt names."""

    tokenizer = ByteTokenizer()

    def __init__(self, steps: dict[str, list[Step]]) -> None:
        self._steps = steps

    async def admit(self, job: Job) -> None: ...

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        text = self.tokenizer.decode(job.prompt) if isinstance(job.prompt, list) else job.prompt
        for name, steps in self._steps.items():
            if name in text:
                for step in steps:
                    yield step
                return
        yield Step(text="Hello.", tokens=1, finish="stop")


LARGE = "x" * (10 << 20)
END = Step(finish="stop")
# What an engine yields, and the answer: None is an error.
ODD_STEPS: dict[str, tuple[list[Step], str | None]] = {
    "invalid utf-8": ([Step(ids=[0xFF, 0xC3, 0x28], tokens=3), END], "\ufffd\ufffd("),
    "cut utf-8": ([Step(ids=[0xE2, 0x82], tokens=2), END], ""),
    "surrogate": ([Step(text="a\ud800b", tokens=1), END], None),
    "vocabulary": ([Step(ids=[1 << 20], tokens=1), END], None),
    "negative": ([Step(ids=[-1], tokens=1), END], None),
    "nothing": ([Step(), Step(), Step(text="a", tokens=1), Step(text=""), END], "a"),
    "only an end": ([END], ""),
    "no end": ([Step(text="a", tokens=1)], None),
    "large": ([Step(text=LARGE, tokens=1), END], LARGE),
    "after the end": ([Step(text="a", tokens=1), END, Step(text="b", tokens=1), END], "a"),
}


@pytest.fixture(scope="module")
def odd() -> Iterator[HostileServer]:
    engine = OddEngine({name: steps for name, (steps, _) in ODD_STEPS.items()})
    with serve_hostile(engine) as server:
        yield server


@pytest.fixture(scope="module")
def odd_and_large() -> Iterator[HostileServer]:
    """Serve steps of many megabytes, without a limit for the lag: each is read in one piece."""
    engine = OddEngine({"large": ODD_STEPS["large"][0]})
    with serve_scripted(engine) as running:
        server = HostileServer(running)
        yield server
        server.client.close()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", ODD_STEPS)
def test_fault_29_odd_steps_are_an_answer_or_an_error(
    case: str, streamed: bool, count_cases: Callable[[int], None], request: pytest.FixtureRequest
) -> None:
    odd: HostileServer = request.getfixturevalue("odd_and_large" if case == "large" else "odd")
    expected = ODD_STEPS[case][1]
    for path in STREAMS:
        response = odd.send(
            "POST", path, allowed={500}, json=make_body(path, case, stream=streamed)
        )
        if case != "large":
            check_no_leaks(response.text, case)
        if streamed and response.status_code == 200:
            end = read_stream(path, response.text)
            assert end.is_complete, path
            assert (end.error is None) == (expected is not None), path
            if expected is not None:
                assert end.text.strip() == expected.strip(), path
        else:
            assert (response.status_code == 200) == (expected is not None), path
            if expected:
                assert json.dumps(expected)[1:-1] in response.text or expected in response.text
        assert odd.send("POST", path, json=make_body(path, "plain")).status_code == 200
    count_cases(len(STREAMS))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", STREAMS)
def test_fault_30_endless_generation_ends_at_the_deadline(path: str, streamed: bool) -> None:
    engine = CountingEngine()
    with serve_scripted(engine, request_timeout=0.5) as server:
        started_at = time.monotonic()
        response = post(server, path, "go on", stream=streamed)
        assert time.monotonic() - started_at < 20
        if streamed and response.status_code == 200:
            assert read_stream(path, response.text).is_complete
        else:
            assert response.status_code in (200, 408, 503, 504)
        poll_until(lambda: engine.running == 0)


@pytest.mark.slow
def test_fault_31_engine_that_blocks_the_loop_is_named_in_the_log() -> None:
    with collect_logs() as logs, serve_scripted(BlockingEngine()) as server:
        assert post(server, CHAT, "block").status_code == 200
        [line] = logs.wait_for("blocked for more than")
        assert "block_event_loop" in line
        assert "faulty_engines.py" in line
        logs.wait_for("was blocked for")
        assert post(server, CHAT, "fine").status_code == 200


LOAD_ERRORS = {
    "broken": ModelBroken("The file holds no model."),
    "no memory": MemoryError(),
    "no file": FileNotFoundError("gone"),
    "engine": RuntimeError("cannot load"),
}


@pytest.mark.parametrize("case", LOAD_ERRORS)
def test_fault_32_failed_load_disturbs_no_other_model(tmp_path: Path, case: str) -> None:
    with serve_models(write_models(tmp_path)) as (server, loader):
        server.run_coroutine(server.app.runtime.services.models.load("a"))
        loader.errors["b"] = LOAD_ERRORS[case]
        for _ in range(2):
            response = httpx.post(f"{server.url}{CHAT}", json=make_chat(model="b"))
            assert response.status_code in (500, 503)
            check_no_leaks(response.text)
            good = httpx.post(f"{server.url}{CHAT}", json=make_chat(model="a"))
            assert good.status_code == 200
        assert httpx.get(server.url + READY).status_code == 200


@pytest.mark.real_model
def test_fault_32_truncated_file_disturbs_no_other_model(
    default_model: Path, tmp_path: Path
) -> None:
    """The default model serves; half of the same file does not load, and leaves no process."""
    shutil.copy(default_model, tmp_path / "whole.gguf")
    half = default_model.stat().st_size // 2
    with default_model.open("rb") as source, (tmp_path / "half.gguf").open("wb") as target:
        target.write(source.read(half))
    flags = ("--context", "512", "--slots", "1", "--threads", "1", "--models-dir", str(tmp_path))
    with run_server("whole", *flags) as (process, url):
        read_until(process, "Serving")
        children = list_child_pids(process.pid)
        for _ in range(2):
            broken = httpx.post(f"{url}{CHAT}", json=make_chat(model="half"), timeout=60)
            assert broken.status_code == 500
            assert broken.json()["error"]["code"] == "model_broken"
            check_no_leaks(broken.text)
            body = make_chat(model="whole", max_tokens=2)
            assert httpx.post(f"{url}{CHAT}", json=body, timeout=60).status_code == 200
        assert list_child_pids(process.pid) == children


class NamedEngine:
    """Answers with the name of its model, word by word."""

    def __init__(self, name: str) -> None:
        self.capabilities = Capabilities(context=1000, slots=4)
        self.name = name

    async def admit(self, job: Job) -> None: ...

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        for _ in range(20):
            await asyncio.sleep(0)
            yield Step(text=f"{self.name} ", tokens=1)
        yield Step(finish="stop")


async def load_named(source: ModelSource) -> Model:
    engine = NamedEngine(source.id)
    return Model(
        id=source.id,
        engine=engine,
        capabilities=engine.capabilities,
        renderer=PromptRenderer(None, None),
    )


def test_fault_33_swapping_models_mixes_no_answers(
    tmp_path: Path, count_cases: Callable[[int], None]
) -> None:
    """Three models, memory for one, and requests for all of them at once, streamed and whole."""
    root, count = write_models(tmp_path), 30
    catalog = ModelCatalog(root, root / "models.yaml")
    catalog.refresh()
    memory = get_size(root, "a") + 5
    settings = config.load({"port": 0, "store": "sqlite://"})
    settings = msgspec.structs.replace(settings, memory=memory)  # less than a flag may say
    models = ModelRegistry(catalog, load_named, runtime.make_policy(settings))
    app = make_app(runtime.build_runtime(models, settings), local=True)
    with run_app(app) as server:

        def ask(number: int) -> tuple[str, str]:
            name, streamed = "abc"[number % 3], number % 2 == 0
            body = make_chat(model=name, stream=streamed)
            while True:
                response = httpx.post(f"{server.url}{CHAT}", json=body, timeout=60)
                if response.status_code != 503:
                    break
                assert int(response.headers["retry-after"]) >= 1  # there is no memory now
            assert response.status_code == 200, response.text
            if streamed:
                return name, read_stream(CHAT, response.text).text
            return name, response.json()["choices"][0]["message"]["content"]

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(ask, range(count)))
        assert all(text.split() == [name] * 20 for name, text in answers)
    count_cases(count)
