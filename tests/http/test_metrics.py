"""Metrics: what is counted for each model and route, and that labels are bounded."""

from __future__ import annotations

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from dragoman.types.limits import PRIORITIES
from tests.support.scripted_chats import PARIS, THINKER, TOOLS
from tests.support.serving import make_chat, parse_events, poll_until, serve_scripted

pytestmark = pytest.mark.slow
CHAT = '{model="%s",route="/v1/chat/completions",status="%d"}'


def read_metrics(url: str) -> dict[str, float]:
    page = httpx.get(f"{url}/metrics").text
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def test_every_request_is_counted_once() -> None:
    engine = ScriptedEngine([Reply("fails", when="bad", raise_at=1), Reply("Hello there!")])
    with serve_scripted(engine) as server:
        url = f"{server.url}/v1/chat/completions"
        httpx.post(url, json=make_chat())
        parse_events(httpx.post(url, json=make_chat(stream=True)))
        httpx.post(url, json=make_chat("bad"))
        httpx.post(url, json=make_chat("bad", stream=True))
        httpx.post(url, json=make_chat(n=0))
        httpx.get(f"{server.url}/nowhere")
        metrics = read_metrics(server.url)
    assert metrics["dragoman_requests_total" + CHAT % ("scripted", 200)] == 3
    assert metrics["dragoman_requests_total" + CHAT % ("scripted", 500)] == 1
    assert metrics["dragoman_requests_total" + CHAT % ("", 400)] == 1
    assert metrics['dragoman_requests_total{model="",route="none",status="404"}'] == 1
    assert metrics["dragoman_succeeded_total"] == 2
    assert metrics['dragoman_errors_total{code="engine_error"}'] == 2
    assert metrics['dragoman_errors_total{code="not_found"}'] == 1
    assert metrics['dragoman_time_to_first_token_seconds_count{model="scripted"}'] == 4
    assert metrics['dragoman_inter_token_seconds_count{model="scripted"}'] > 2
    assert metrics['dragoman_tokens_total{kind="completion",model="scripted"}'] > 4
    assert metrics["dragoman_streams_open"] == 0
    assert metrics['dragoman_requests_running{model="scripted"}'] == 0


def test_models_have_times_calls_finishes_and_warnings() -> None:
    engine = ScriptedEngine(PARIS, grammars=True)
    with serve_scripted(engine, chat_template=THINKER) as server:
        body = make_chat(tools=TOOLS, verbosity="low")
        httpx.post(f"{server.url}/v1/chat/completions", json=body)
        metrics = read_metrics(server.url)
    for name in ("prefill_seconds", "generation_tokens_per_second"):
        assert metrics[f'dragoman_{name}_count{{model="scripted"}}'] == 1, name
    queue = 'dragoman_queue_seconds_count{model="scripted",priority="%s"}'
    assert [metrics[queue % priority] for priority in PRIORITIES] == [1, 0, 0]
    assert metrics['dragoman_tool_calls_total{model="scripted"}'] == 1
    assert metrics['dragoman_finishes_total{model="scripted",reason="tool_calls"}'] == 1
    assert metrics['dragoman_warnings_total{model="scripted"}'] == 1


def test_use_of_slots_and_kv_cache_is_shown() -> None:
    engine = ScriptedEngine("one two three", pace=None, tokens=True, slots=2, context=500)
    label = '{model="scripted"}'
    with serve_scripted(engine) as server:
        body = {"model": "scripted", "prompt": "12345", "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body):
            server.run_coroutine(engine.wait_until(lambda engine: engine.active == 1))
            server.loop.call_soon_threadsafe(engine.tick, 3)
            poll_until(lambda: read_metrics(server.url)[f"dragoman_kv_tokens{label}"] > 5)
            busy = read_metrics(server.url)
        poll_until(lambda: read_metrics(server.url)[f"dragoman_slots_busy{label}"] == 0)
        idle = read_metrics(server.url)
    assert busy[f"dragoman_slots{label}"] == 2
    assert busy[f"dragoman_slots_busy{label}"] == 1
    assert busy[f"dragoman_kv_tokens_limit{label}"] == 1000
    assert idle[f"dragoman_kv_tokens{label}"] == 0


def test_labels_are_bounded_whatever_clients_send() -> None:
    with serve_scripted("x") as server:
        for i in range(50):
            httpx.get(f"{server.url}/unknown/path/{i}")
            httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(model=f"model-{i}"))
        page = httpx.get(f"{server.url}/metrics").text
    assert "unknown" not in page
    assert "model-4" not in page
