"""Metrics: what is counted, and that labels are bounded."""

from __future__ import annotations

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import make_chat, parse_events, serve_scripted

pytestmark = pytest.mark.slow


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
        page = httpx.get(f"{server.url}/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert lines['dragoman_requests_total{route="/v1/chat/completions",status="200"}'] == "3.0"
    assert lines['dragoman_requests_total{route="/v1/chat/completions",status="500"}'] == "1.0"
    assert lines['dragoman_requests_total{route="/v1/chat/completions",status="400"}'] == "1.0"
    assert lines['dragoman_requests_total{route="none",status="404"}'] == "1.0"
    assert lines["dragoman_succeeded_total"] == "2.0"
    assert lines['dragoman_errors_total{code="engine_error"}'] == "2.0"
    assert lines['dragoman_errors_total{code="not_found"}'] == "1.0"
    assert float(lines["dragoman_time_to_first_token_seconds_count"]) == 4
    assert float(lines["dragoman_inter_token_seconds_count"]) > 2
    assert float(lines['dragoman_tokens_total{kind="completion"}']) > 4
    assert lines["dragoman_streams_open"] == "0.0"
    assert lines['dragoman_requests_running{model="scripted"}'] == "0.0"


def test_labels_are_bounded_whatever_clients_send() -> None:
    with serve_scripted("x") as server:
        for i in range(50):
            httpx.get(f"{server.url}/unknown/path/{i}")
            httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(model=f"model-{i}"))
        page = httpx.get(f"{server.url}/metrics").text
    assert "unknown" not in page
    assert "model-4" not in page
