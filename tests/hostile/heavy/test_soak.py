"""Mixed load by several keys while faults are injected: `make test-soak` (SECONDS=600).

One server has a scripted engine in a child process, so that every answer is known; its engine is
killed and stopped, its database locked, its configuration reloaded. Another one serves the default
model at the same time, whose engine is killed, too. At the end, nothing may be left behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.engines.subprocess.restart_schedule import Timing
from tests.responses.remote_tools import THINKER
from tests.support.fault_clients import make_body, read_stream
from tests.support.fault_server import FaultServer, ServerPlan, run_plan
from tests.support.hostile_load import find_engine_pid, is_engine
from tests.support.leaks import Held, find_leaks, list_held
from tests.support.mutations import MutationContext
from tests.support.process_cost import read_resident_bytes
from tests.support.recorded_requests import list_recorded
from tests.support.server_process import read_until, run_server
from tests.support.serving import make_scripted_app
from tests.support.soak import SCRIPT, SoakLoad

SECONDS = float(os.environ.get("SOAK_SECONDS", "0"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
WORKERS = 12
FAULT_INTERVAL = 12.0  # seconds
MAX_SLOPE = 1.0  # MB per minute, in the second half
MAX_LIVE_GROWTH = 60.0  # bytes of live objects for each request, likewise
MAX_GROWTH = 30 << 20  # bytes, likewise
WARM_UP = 0.5  # of the time, before memory is measured
COMPARED_SAMPLES = 20  # at the start and at the end, one each second
SPAN = 20  # samples of which the smallest counts for the slope
LOCK_SECONDS = 3.0
RECOVERY_SECONDS = 120.0
IDLE_SECONDS = 60.0
MODEL = "smollm2-135m"
KEYS = {name: f"{name}-has-a-key-of-enough-length" for name in ("anna", "ben", "carl")}
pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(not SECONDS, reason="takes minutes: `make test-soak`"),
]


class Usage:
    """What a process uses, sampled over time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._samples: list[tuple[float, int]] = []  # time, and bytes in memory

    @property
    def growth(self) -> int:
        """How many bytes it has grown by after the warm-up, without what single requests take."""
        samples = self._samples[int(len(self._samples) * WARM_UP) :]
        first, last = samples[:COMPARED_SAMPLES], samples[-COMPARED_SAMPLES:]
        return round(find_medians(last)[1] - find_medians(first)[1])

    def sample(self) -> None:
        self._samples.append((time.monotonic(), read_resident_bytes(self._pid)))

    def find_slope(self) -> float:
        """Return the growth in MB per minute after the warm-up, of what the process always keeps.

        Its memory rises with requests and falls with garbage collections, by more than a slow leak
        adds in minutes. But a leak raises the smallest size in each span of time as well, so the
        slope is the median of the slopes between all pairs of these.
        """
        samples = self._samples[int(len(self._samples) * WARM_UP) :]
        spans = [samples[start : start + SPAN] for start in range(0, len(samples) - SPAN + 1, SPAN)]
        lowest = [min(span, key=lambda sample: sample[1]) for span in spans]
        slopes = [
            (late - early) / (late_at - early_at)
            for (early_at, early), (late_at, late) in combinations(lowest, 2)
        ]
        return statistics.median(slopes) * 60 / (1 << 20) if slopes else 0.0


def find_medians(samples: list[tuple[float, int]]) -> tuple[float, float]:
    times, sizes = zip(*samples, strict=True)
    return statistics.median(times), statistics.median(sizes)


class FaultInjector:
    """Injects one fault after the other into the server with the scripted engine."""

    def __init__(self, server: FaultServer, load: SoakLoad, store: Path, config: Path) -> None:
        self.counts: dict[str, int] = {}
        self.recoveries: list[float] = []  # seconds from a fault of the engine to readiness
        self._server = server
        self._load = load
        self._store = store
        self._config = config
        self._faults: list[Callable[[], None]] = [
            self.kill_engine,
            self.lock_database,
            self.stop_engine,
            self.reload,
        ]

    def inject_next(self) -> None:
        number = sum(self.counts.values())
        fault = self._faults[number % len(self._faults)]
        self.counts[fault.__name__] = self.counts.get(fault.__name__, 0) + 1
        self._load.fault_at = float("inf")  # in effect
        try:
            fault()
        finally:
            self._load.fault_at = time.monotonic()

    def kill_engine(self) -> None:
        self._signal_engine(signal.SIGKILL)

    def stop_engine(self) -> None:
        self._signal_engine(signal.SIGSTOP)

    def _signal_engine(self, number: signal.Signals) -> None:
        """Send a signal to the engine, and wait until another one has taken its place."""
        before, started_at = self._list_engines(), time.monotonic()
        for pid in before:
            os.kill(pid, number)
        while not set(self._list_engines()) - set(before) or not is_ready(self._server):
            assert time.monotonic() - started_at < RECOVERY_SECONDS, "the engine is not replaced"
            time.sleep(0.1)  # there is no event to wait for
        self.recoveries.append(time.monotonic() - started_at)

    def _list_engines(self) -> list[int]:
        return [pid for pid in self._server.list_children() if is_engine(pid)]

    def lock_database(self) -> None:
        connection = sqlite3.connect(self._store, timeout=10)
        try:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(LOCK_SECONDS)  # the fault itself
            connection.rollback()
        finally:
            connection.close()

    def reload(self) -> None:
        """Reload another configuration with the same keys."""
        write_keys(self._config, 100_000 + sum(self.counts.values()))
        self._server.send_signal(signal.SIGHUP)


def write_keys(path: Path, limit: int) -> None:
    entries = "".join(
        f"\n    - {{name: {name}, key: {key}, limits: {{requests_per_minute: {limit}}}}}"
        for name, key in KEYS.items()
    )
    replacement = path.with_suffix(".new")
    replacement.write_text(f"keys:\n  entries:{entries}\n")
    replacement.replace(path)


class RealLoad:
    """Streams and answers of the default model, one after the other; its engine is killed."""

    def __init__(self, url: str) -> None:
        self.counts = {"answered": 0, "failed": 0, "lost": 0}
        self.problems: list[str] = []
        self._url = url
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(2)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(120)

    def _work(self, number: int) -> None:
        path = "/v1/chat/completions"
        with httpx.Client(base_url=self._url, timeout=120) as client:
            while not self._stopped.is_set():
                streamed = number == 0
                body = make_body(path, "Tell me about the sea.", stream=streamed)
                try:
                    response = client.post(path, json=body | {"model": MODEL, "max_tokens": 24})
                except httpx.TransportError:
                    self.counts["lost"] += 1
                    continue
                outcome = self._classify(path, response, streamed)
                self.counts[outcome] += 1
                if outcome == "lost":
                    self.problems.append(f"{response.status_code} {response.text[-500:]}")

    @staticmethod
    def _classify(path: str, response: httpx.Response, streamed: bool) -> str:
        if response.status_code == 503 and "retry-after" in response.headers:
            return "failed"
        if response.status_code != 200:
            return "lost"
        if not streamed:
            return "answered" if response.json()["usage"]["completion_tokens"] else "lost"
        end = read_stream(path, response.text)
        if not end.is_complete:
            return "lost"
        return "answered" if end.error is None else "failed"


@contextmanager
def serve_default_model(model: Path) -> Iterator[tuple[int, RealLoad]]:
    flags = ("--context", "1024", "--slots", "2", "--threads", "1", "--store", "sqlite://")
    with run_server(MODEL, *flags, "--models-dir", str(model.parent.parent)) as (process, url):
        read_until(process, "Serving")
        reader = threading.Thread(target=lambda: list(process.stdout or ()))  # keeps the pipe empty
        reader.start()
        load = RealLoad(url)
        load.start()
        try:
            yield process.pid, load
        finally:
            load.stop()
            process.terminate()
            process.wait(60)
            reader.join(10)


def test_soak(default_model: Path, tmp_path: Path, add_figures: Callable[..., None]) -> None:
    store, config = tmp_path / "store.db", tmp_path / "dragoman.yaml"
    write_keys(config, 100_000)
    plan = ServerPlan(
        engine={"script": SCRIPT, "slots": 8, "grammars": True, "context": 100_000},
        factory="tests.support.faulty_engines:create_probed_script",
        in_child=True,
        timing=Timing(hang_timeout=2.0, first_restart_delay=0.1),
        options={
            "store": f"sqlite:///{store}",
            "store_size": 64 << 20,
            "config": str(config),
            "chat_template": str(THINKER),
            "log_level": "warning",
            "recall": False,  # its cache, which fills for an hour, would hide a leak
        },
    )
    with ExitStack() as stack:
        server = stack.enter_context(run_plan(plan))
        real_pid, real_load = stack.enter_context(serve_default_model(default_model))
        load = SoakLoad(server.url, KEYS, SEED)
        recorded = list_recorded(make_scripted_app().router.routes)
        load.mutations = MutationContext(recorded, ["model", "stream", "input"], ["resp_1", "a"])
        injector = FaultInjector(server, load, store, config)
        usages = {"server": Usage(server.process.pid), "real": Usage(real_pid)}
        asyncio.run(load.warm_up())
        asyncio.run(load.run(WORKERS, min(5.0, SECONDS / 10)))  # fills caches and pools
        wait_until_idle(server)
        before = list_held(server)
        live_growth = run_halves(server, load, lambda: run_load(load, injector, usages, real_pid))
        real_load.stop()
        leaks = find_lasting_leaks(server, before)
        figures = collect_figures(load, injector, usages, real_load)
        figures |= {f"leaked {kind}": names.total() for kind, names in leaks.items()}
        figures["engine restarts"] = read_metric(server, "engine_restarts_total")
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        figures["growth of live objects in bytes per request"] = round(live_growth, 1)
    report(figures, load)
    add_figures("soak", **figures)
    assert load.outcomes["lost"] == load.outcomes["wrong"] == 0, load.problems[:5]
    assert real_load.counts["lost"] == 0, real_load.problems[:5]
    assert load.outcomes["answered"] > SECONDS
    assert not any(leaks.values()), leaks
    if SECONDS >= 600:  # before that, caches and pools of threads still fill
        assert usages["server"].find_slope() < MAX_SLOPE
        assert usages["server"].growth < MAX_GROWTH
        assert live_growth < MAX_LIVE_GROWTH
    assert "Traceback" not in server.log, server.log[-3000:]


def run_halves(
    server: FaultServer, load: SoakLoad, run: Callable[[], Coroutine[None, None, None]]
) -> float:
    """Run the load twice; return by how much live objects grow for a request of the second time.

    They are measured while no request is in progress. After the first time, caches are full.
    """
    measured = []
    for _ in range(2):
        asyncio.run(run())
        wait_until_idle(server)
        measured.append((sum(load.outcomes.values()), server.measure_live_bytes()))
    (requests_before, before), (requests, after) = measured
    return (after - before) / (requests - requests_before)


async def run_load(
    load: SoakLoad, injector: FaultInjector, usages: dict[str, Usage], real_pid: int
) -> None:
    """Run the load for half of the time; inject a fault now and then until shortly before."""
    seconds = SECONDS / 2
    running = asyncio.create_task(load.run(WORKERS, seconds))
    started_at, next_fault_at = time.monotonic(), time.monotonic() + FAULT_INTERVAL / 2
    while not running.done():
        for usage in usages.values():
            usage.sample()
        now = time.monotonic()
        if next_fault_at <= now < started_at + seconds - FAULT_INTERVAL / 2:
            await asyncio.to_thread(injector.inject_next)
            if sum(injector.counts.values()) % 8 == 1:
                os.kill(find_engine_pid(real_pid), signal.SIGKILL)
            next_fault_at = time.monotonic() + FAULT_INTERVAL
        await asyncio.wait({running}, timeout=1.0)
    await running


def read_metric(server: FaultServer, name: str) -> int:
    headers = {"authorization": f"Bearer {KEYS['anna']}"}
    page = server.client.get("/metrics", headers=headers).text
    lines = [line for line in page.splitlines() if line.startswith(f"dragoman_{name}")]
    assert lines, f"no {name} in {page[:500]}"
    values = [line.split()[-1] for line in lines]
    return round(sum(map(float, values)))


def wait_until_idle(server: FaultServer) -> None:
    """Wait until no request is left, those of background responses included."""
    deadline = time.monotonic() + IDLE_SECONDS
    while sum(count_requests(server).values()) or not is_ready(server):
        if time.monotonic() > deadline:
            return  # and they are counted as leaks
        time.sleep(0.5)  # there is no event to wait for


def count_requests(server: FaultServer) -> Counter[str]:
    states = {"slots in use": "requests_running", "requests in the queue": "requests_waiting"}
    return Counter({name: read_metric(server, metric) for name, metric in states.items()})


def is_ready(server: FaultServer) -> bool:
    return server.client.get("/health/ready").status_code == 200


def find_lasting_leaks(server: FaultServer, before: Held) -> Held:
    """Return what stays behind when everything has had the time to end."""
    deadline = time.monotonic() + IDLE_SECONDS
    while any((leaks := find_leaks(before, list_held(server))).values()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)  # there is no event to wait for
    requests = count_requests(server)
    return {
        name: Counter({name: count} if count else ()) for name, count in requests.items()
    } | leaks


def collect_figures(
    load: SoakLoad,
    injector: FaultInjector,
    usages: dict[str, Usage],
    real_load: RealLoad,
) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds": round(SECONDS)}
    figures["requests"] = sum(load.outcomes.values())
    for name in ("answered", "lost", "wrong"):
        figures[name] = load.outcomes[name]
    figures |= dict(sorted(load.outcomes.items()))
    figures |= {f"fault: {name}".replace("_", " "): n for name, n in injector.counts.items()}
    figures["longest recovery of the engine in seconds"] = round(max(injector.recoveries), 1)
    slopes = {name: round(usage.find_slope(), 2) for name, usage in usages.items()}
    figures["memory slope in MB per minute"] = slopes["server"]
    figures["growth of memory in MB"] = usages["server"].growth >> 20
    figures["memory slope with the default model"] = slopes["real"]
    figures |= {f"default model: {name}": count for name, count in real_load.counts.items()}
    return figures


def report(figures: dict[str, Any], load: SoakLoad) -> None:
    print()
    for name, value in figures.items():
        print(f"{name:45} {value:>12,}")
    print(", ".join(f"{count} {name}" for name, count in load.operations.most_common()))
    for problem in load.problems[:20]:
        print(problem)
