"""Requests that only waited in the queue survive a restart of the engine."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from dragoman.engines.subprocess.engine import SubprocessEngine
from tests.support import real_model
from tests.support.serving import RunningServer, poll_until
from tests.support.supervised_engine import FAST, serve_supervised

WAITING = 8


@contextmanager
def occupy_all_slots(url: str, body: dict[str, Any], count: int) -> Iterator[list[str]]:
    """Run endless streams while the block runs; yields the texts that they sent afterwards."""
    texts: list[str] = []

    def read() -> None:
        texts.append(httpx.post(url, json=body | {"stream": True}, timeout=120).text)

    with ThreadPoolExecutor(count) as pool:
        readers = [pool.submit(read) for _ in range(count)]
        yield texts
        for reader in readers:
            reader.result()


def kill_with_waiting_requests(
    server: RunningServer, engine: SubprocessEngine, endless: dict[str, Any], short: dict[str, Any]
) -> tuple[Counter[int], list[str]]:
    """Kill the engine while its slots are busy and requests wait; return what all of them got."""
    url, gate = f"{server.url}/v1/completions", server.get_gate()
    slots = gate.slots
    assert slots
    with occupy_all_slots(url, endless, slots) as texts, ThreadPoolExecutor(WAITING) as pool:
        poll_until(lambda: gate.busy_slots == slots)
        waiting = [pool.submit(httpx.post, url, json=short, timeout=120) for _ in range(WAITING)]
        poll_until(lambda: gate.waiting == WAITING)
        pid = engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        statuses = Counter(answer.result().status_code for answer in waiting)
        assert engine.pid != pid
    return statuses, texts


def test_what_waits_is_answered_after_a_restart() -> None:
    with serve_supervised(timing=replace(FAST, hang_timeout=60.0)) as server:
        endless = {"model": "scripted", "prompt": "step " * 5 + "wait:60"}
        short = {"model": "scripted", "prompt": "step"}
        result = kill_with_waiting_requests(server.server, server.engine, endless, short)
    statuses, texts = result
    assert statuses == {200: WAITING}
    assert texts
    assert all('"engine_down"' in text for text in texts)


def test_a_new_load_wait_holds_for_gates_that_exist(tmp_path: Path) -> None:
    """The engine stays away: without the new setting, requests would wait for an hour."""
    file = tmp_path / "dragoman.yaml"
    file.write_text("limits: {load_wait: 1h}")
    slow = replace(FAST, first_restart_delay=600.0, max_restart_delay=600.0)
    with serve_supervised(timing=slow, config=str(file)) as server:
        assert server.complete("step").status_code == 200  # the gate exists
        file.write_text("limits: {load_wait: 100ms}")
        app = server.server.app
        server.server.loop.call_soon_threadsafe(app.reload)
        poll_until(lambda: app.settings.load_wait == 0.1)
        pid = server.engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        poll_until(lambda: server.engine.state != "ready")
        answer = server.complete("step")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_down")
        assert answer.headers["retry-after"]


@pytest.mark.real_model
def test_what_waits_for_the_real_engine_is_answered_after_a_restart(default_model: Path) -> None:
    body = {"model": real_model.MODEL, "prompt": "One, two,"}
    endless = body | {"max_tokens": 900, "ignore_eos": True}
    with real_model.serve(default_model, context=1024, slots=2) as server:
        [model] = server.app.runtime.services.models.list_loaded()
        engine = model.engine
        assert isinstance(engine, SubprocessEngine)
        result = kill_with_waiting_requests(server, engine, endless, body | {"max_tokens": 2})
    assert result[0] == {200: WAITING}
    assert all('"engine_down"' in text for text in result[1])
