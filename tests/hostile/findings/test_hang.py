"""A hang of the engine is noticed, and what looks like one is not."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.config import Settings
from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer, poll_until
from tests.support.thread_holder import HoldForbidden, find_busiest_thread, hold_thread

NOTICED_WITHIN = 30.0  # seconds, with the default setting
# a small batch, so that a step of the engine is short on a busy machine, too
ENGINE = {"slots": 3, "context": 2048, "batch": 16}
ENDLESS = {"model": MODEL, "prompt": "One, two,", "max_tokens": 1900, "ignore_eos": True}


@contextmanager
def hold_busiest_thread(pid: int) -> Iterator[None]:
    """Hold the native thread that decodes; the test is skipped where that is forbidden."""
    thread = find_busiest_thread(pid)
    try:
        with hold_thread(thread):
            yield
    except HoldForbidden:
        pytest.skip("ptrace is forbidden here")


def read_stream(client: httpx.Client) -> Iterator[Any]:
    """Yield the events of an endless stream, and the text of the last one."""
    with client.stream("POST", "/v1/completions", json={**ENDLESS, "stream": True}) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


def get_pid(server: RunningServer) -> int:
    [model] = server.app.runtime.services.models.list_loaded()
    pid = getattr(model.engine, "pid", None)
    assert isinstance(pid, int)
    return pid


def hang_and_recover(server: RunningServer) -> float:
    """Hold the thread that decodes while two requests run; return after how long they fail."""
    with (
        httpx.Client(base_url=server.url, timeout=120) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = read_stream(client)
        next(stream)
        whole = pool.submit(client.post, "/v1/completions", json=ENDLESS | {"prompt": "Three,"})
        poll_until(lambda: server.get_gate().running == 2)
        pid = get_pid(server)
        with hold_busiest_thread(pid):
            started_at = time.monotonic()
            *_, failure, done = stream
            seconds = time.monotonic() - started_at
            assert (json.loads(failure)["error"]["code"], done) == ("engine_down", "[DONE]")
            failed = whole.result()
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_down")
            assert failed.headers["retry-after"]
            ready = client.get("/health/ready")
            assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
            assert "made no progress and is being restarted" in ready.text
        poll_until(lambda: client.get("/health/ready").status_code == 200)
        again = client.post("/v1/completions", json=ENDLESS | {"max_tokens": 2})
        assert again.status_code == 200
        assert get_pid(server) != pid
        metrics = client.get("/metrics").text
        assert f'dragoman_engine_restarts_total{{model="{MODEL}",reason="hung"}} 1.0' in metrics
        return seconds


@pytest.mark.real_model
def test_a_native_hang_is_noticed(
    default_model: Path, caplog: pytest.LogCaptureFixture, add_figures: Any
) -> None:
    with caplog.at_level(logging.ERROR), serve(default_model, hang_timeout=2, **ENGINE) as server:
        seconds = hang_and_recover(server)
    [line] = [record.getMessage() for record in caplog.records if "hangs" in record.getMessage()]
    assert line.count("generate cmpl-") == 2
    # with the default setting, too: that takes its time, and is tried in heavy/test_hang.py
    assert Settings().hang_timeout < NOTICED_WITHIN
    assert "2 of 3 slots busy" in line
    assert "One, two" not in line
    figures = {"hang_timeout in seconds": 2, "seconds until it was noticed": round(seconds, 1)}
    add_figures("hang", **figures)
