"""OpenTelemetry spans of requests, and the trace context in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from dragoman.config import load
from dragoman.runtime import StartupError, make_tracer_provider
from dragoman.testing import Reply, ScriptedEngine
from tests.responses.remote_tools import write_call
from tests.support.loopback_services import serve_collector
from tests.support.mcp_servers import serve_tools
from tests.support.paths import TEMPLATES
from tests.support.serving import make_chat, poll_until, serve_scripted

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def wait_for_spans(exporter: InMemorySpanExporter, name: str) -> dict[str, ReadableSpan]:
    """Wait until the outer span of a request has ended; return all spans by name."""
    poll_until(lambda: any(span.name == name for span in exporter.get_finished_spans()))
    return {span.name: span for span in exporter.get_finished_spans()}


def get_attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "operation", "body"),
    [
        ("/v1/chat/completions", "chat", make_chat(temperature=0.5, seed=3, stop=["END"])),
        ("/v1/completions", "text_completion", {"model": "scripted", "prompt": "hi"}),
        ("/v1/messages", "chat", make_chat(max_tokens=50)),
        ("/v1/responses", "chat", {"model": "scripted", "input": "hi", "store": False}),
    ],
)
def test_spans_follow_the_conventions(
    path: str,
    operation: str,
    body: dict[str, Any],
    stream: bool,
    provider: TracerProvider,
    exporter: InMemorySpanExporter,
) -> None:
    with serve_scripted("Hello there!", tracer_provider=provider) as server:
        url, headers = server.url + path, {"traceparent": TRACEPARENT}
        response = httpx.post(url, json=body | {"stream": stream}, headers=headers)
        spans = wait_for_spans(exporter, f"POST {path}")
    outer, inner = spans[f"POST {path}"], spans[f"{operation} scripted"]
    assert outer.kind is SpanKind.SERVER
    assert outer.parent is not None
    assert f"{outer.parent.span_id:016x}" == SPAN_ID
    assert outer.context is not None
    assert response.headers["traceparent"] == f"00-{TRACE_ID}-{outer.context.span_id:016x}-01"
    assert get_attributes(outer)["http.response.status_code"] == 200
    attributes = get_attributes(inner)
    assert attributes["gen_ai.operation.name"] == operation
    assert attributes["gen_ai.provider.name"] == "dragoman"
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == "scripted"
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["gen_ai.usage.output_tokens"] > 0
    assert attributes["gen_ai.response.time_to_first_chunk"] > 0
    if "seed" in body:
        assert attributes["gen_ai.request.temperature"] == 0.5
        assert attributes["gen_ai.request.seed"] == 3
        assert attributes["gen_ai.request.stop_sequences"] == ("END",)
    assert {"decode", "render", "queue", "prefill", "generate"} <= set(spans)
    for name in ("render", "generate"):
        assert spans[name].parent == inner.context
        assert inner.start_time <= spans[name].start_time <= spans[name].end_time  # type: ignore[operator]


def test_embeddings_have_a_span(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    with serve_scripted(tracer_provider=provider) as server:
        httpx.post(f"{server.url}/v1/embeddings", json={"model": "scripted", "input": "a b"})
        spans = wait_for_spans(exporter, "POST /v1/embeddings")
    attributes = get_attributes(spans["embeddings scripted"])
    assert attributes["gen_ai.operation.name"] == "embeddings"
    assert attributes["gen_ai.usage.input_tokens"] >= 0
    assert {"resolve", "queue", "embed"} <= set(spans)


def test_failed_request_has_an_error(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    engine = ScriptedEngine([Reply("fails", raise_at=1)])
    with serve_scripted(engine, tracer_provider=provider) as server:
        httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
        spans = wait_for_spans(exporter, "POST /v1/chat/completions")
    outer = spans["POST /v1/chat/completions"]
    assert outer.status.status_code is StatusCode.ERROR
    assert get_attributes(outer)["error.type"] == "engine_error"


def test_spans_contain_no_prompts(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    with serve_scripted("private answer", tracer_provider=provider) as server:
        body = make_chat("private question")
        httpx.post(f"{server.url}/v1/chat/completions", json=body)
        spans = wait_for_spans(exporter, "POST /v1/chat/completions")
    assert "private" not in json.dumps([span.to_json() for span in spans.values()])


def test_remote_tools_get_the_trace_context(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    replies = [Reply("It is five.", when="The sum is 5."), Reply(write_call("calc__add", a=2, b=3))]
    with serve_tools() as remote:
        tool = {"type": "mcp", "server_label": "calc", "server_url": remote.url}
        body = {
            "model": "scripted",
            "input": "Add",
            "tools": [tool | {"require_approval": "never"}],
        }
        options = {"chat_template": TEMPLATES / "thinker.jinja", "mcp_hosts": (remote.host,)}
        engine = ScriptedEngine(replies)
        with serve_scripted(engine, tracer_provider=provider, **options) as server:
            headers = {"traceparent": TRACEPARENT}
            response = httpx.post(f"{server.url}/v1/responses", json=body, headers=headers)
            spans = wait_for_spans(exporter, "POST /v1/responses")
    parents = {request.get("traceparent") for request in remote.log.requests}
    assert parents == {response.headers["traceparent"]}
    tool_span = spans["execute_tool add"]
    assert tool_span.kind is SpanKind.CLIENT
    assert get_attributes(tool_span)["gen_ai.tool.name"] == "add"


@pytest.mark.parametrize(
    ("sent", "returned"),
    [(TRACEPARENT, TRACEPARENT), ("00-bad", None), (f"00-{'0' * 32}-{SPAN_ID}-01", None)],
)
def test_trace_context_passes_through_without_opentelemetry(
    sent: str, returned: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with serve_scripted() as server:
        response = httpx.get(f"{server.url}/v1/models", headers={"traceparent": sent})
    assert response.status_code == 200
    assert response.headers.get("traceparent") == returned


def test_spans_are_sent_to_a_collector() -> None:
    with (
        serve_collector() as (endpoint, received),
        serve_scripted(otlp_endpoint=endpoint) as server,
    ):
        httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
    [(path, body)] = received
    assert path == "/v1/traces"
    for text in (b"POST /v1/chat/completions", b"gen_ai.request.model", b"dragoman"):
        assert text in body


def test_provider_of_the_program_stays_open(
    provider: TracerProvider, exporter: InMemorySpanExporter
) -> None:
    with serve_scripted(tracer_provider=provider) as server:
        httpx.get(f"{server.url}/v1/models")
    with provider.get_tracer("program").start_as_current_span("afterwards"):
        pass
    assert "afterwards" in {span.name for span in exporter.get_finished_spans()}


def test_endpoint_without_the_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("opentelemetry.exporter"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    with pytest.raises(StartupError, match=r"dragoman\[otel\]"):
        make_tracer_provider(load({"otlp_endpoint": "http://localhost:4318"}))
