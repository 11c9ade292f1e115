"""OpenTelemetry spans and the trace context.

A request is a server span. A request that uses a model has a span below it that follows the GenAI
conventions, with a child for each stage. Only the outer span exists while the request
runs, because calls to other servers name it as their parent; the others are made from the record
at the end. Without the extra `otel`, or without a configured provider, there are no spans, and the
trace context of the client is passed on as it is.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from dragoman._version import __version__
from dragoman.telemetry.record import RequestRecord, StageTime
from dragoman.types import Json, Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

# `gen_ai.operation.name`, by the name of the wire API.
OPERATIONS = {
    "chat": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
    "infill": "text_completion",
    "messages": "chat",
    "rerank": "rerank",
    "responses": "chat",
}
# Attributes of a request, by the names of our sampling fields.
SAMPLING_ATTRIBUTES = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
}
CLOSE_SECONDS = 3.0
TOOL_STAGE = "tool"  # a call to a remote tool; its details are the tool's name
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Tracing:
    """Makes the spans of requests."""

    def __init__(self, provider: object | None = None) -> None:
        """`provider` is a `TracerProvider`; None is the one that the program has configured."""
        self._tracer = _get_tracer(provider)
        self._has_provider = provider is not None
        self._is_configured = _make_configured_check()
        self._spans: dict[int, Span] = {}  # of the requests in progress, by the id of the record

    def start(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """Start the span of a request, below the span that its headers name."""
        incoming = headers.get("traceparent")
        if incoming is not None and _TRACEPARENT.fullmatch(incoming):
            record.traceparent = incoming
        if self._tracer is None or not (self._has_provider or self._is_configured()):
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(dict(headers))
        span = self._tracer.start_span(
            record.method, parent, SpanKind.SERVER, start_time=record.started_ns
        )
        context = span.get_span_context()
        if context.is_valid:
            record.traceparent = (
                f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
            )
        if span.is_recording():
            self._spans[id(record)] = span

    def finish(self, record: RequestRecord) -> None:
        """End the span of a request, and make those of its model and stages."""
        span = self._spans.pop(id(record), None)
        if span is None or self._tracer is None:
            return
        from opentelemetry.trace import Status, StatusCode

        span.update_name(f"{record.method} {record.route}".strip())
        span.set_attributes(_make_http_attributes(record))
        if record.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        if record.requested_model:
            _add_model_span(self._tracer, span, record)
        span.end(_to_ns(record, record.started + record.seconds))


def _get_tracer(provider: object | None) -> Tracer | None:
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("dragoman", __version__, cast("TracerProvider | None", provider))


def _make_configured_check() -> Callable[[], bool]:
    """Return whether the program has configured a provider; it may do so at any time."""
    try:
        from opentelemetry import trace
    except ImportError:
        return lambda: False
    trace.get_tracer_provider()  # sets the one that the environment names
    if hasattr(trace, "_TRACER_PROVIDER"):  # the function above looks at the environment again
        return lambda: trace._TRACER_PROVIDER is not None
    return lambda: not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def make_provider(endpoint: str) -> object:
    """Make a provider that sends spans to an OTLP collector; `ImportError` without the extra."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # The SDK reads OTEL_SERVICE_NAME and the like itself; they win over our name.
    resource = Resource({SERVICE_NAME: "dragoman"}).merge(Resource.create())
    provider = TracerProvider(resource=resource)
    url = endpoint.rstrip("/")
    url = url if url.endswith("/v1/traces") else f"{url}/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider


def close_provider(provider: object | None) -> None:
    """Send the spans that are left; wait a short time for a collector that does not answer."""
    # its own timeout is too long for a server that must stop
    shutdown = cast("SdkTracerProvider", provider).shutdown
    closing = threading.Thread(target=shutdown, name="spans-close", daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)


def _to_ns(record: RequestRecord, moment: float) -> int:
    return record.started_ns + round(1e9 * (moment - record.started))


def _make_http_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "dragoman.request.id": record.request_id,
    }
    if record.error_code is not None:
        attributes["error.type"] = record.error_code
    return attributes


def _add_model_span(tracer: Tracer, parent: Span, record: RequestRecord) -> None:
    """Add the span of the model, with a child for each stage."""
    from opentelemetry.trace import SpanKind, set_span_in_context

    operation = OPERATIONS.get(record.api, "chat")
    span = tracer.start_span(
        f"{operation} {record.requested_model}",
        set_span_in_context(parent),
        SpanKind.INTERNAL,
        attributes=_make_model_attributes(record, operation),
        start_time=record.started_ns,
    )
    inside = set_span_in_context(span)
    for stage in record.list_stages():
        name, kind, attributes = _describe_stage(stage)
        child = tracer.start_span(
            name,
            inside,
            kind,
            attributes=attributes,
            start_time=_to_ns(record, stage.start),
        )
        child.end(_to_ns(record, stage.end))
    span.end(_to_ns(record, record.started + record.seconds))


def _describe_stage(stage: StageTime) -> tuple[str, SpanKind, dict[str, AttributeValue]]:
    from opentelemetry.trace import SpanKind

    if stage.name != TOOL_STAGE:
        return stage.name, SpanKind.INTERNAL, {}
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": stage.details,
        "gen_ai.tool.type": "extension",
    }
    return f"execute_tool {stage.details}", SpanKind.CLIENT, attributes


def _make_model_attributes(record: RequestRecord, operation: str) -> dict[str, AttributeValue]:
    usage = record.usage
    attributes: dict[str, Json] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "dragoman",
        "gen_ai.request.model": record.requested_model,
        "gen_ai.response.model": record.model or None,
        "gen_ai.response.id": record.response_id or None,
        "gen_ai.response.finish_reasons": list(record.finishes) or None,
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
        "error.type": record.error_code,
    }
    if record.first_token is not None:
        seconds = record.first_token - record.started
        attributes["gen_ai.response.time_to_first_chunk"] = seconds
    if record.request is not None:
        attributes |= _make_request_attributes(record.request)
    return {name: value for name, value in attributes.items() if value is not None}


def _make_request_attributes(request: Request) -> dict[str, Json]:
    attributes: dict[str, Json] = {
        attribute: getattr(request.sampling, field)
        for field, attribute in SAMPLING_ATTRIBUTES.items()
    }
    is_json = request.constraint is not None and request.constraint.kind == "json"
    attributes["gen_ai.output.type"] = "json" if is_json else "text"
    attributes["gen_ai.request.stop_sequences"] = list(request.stop) or None
    if request.n > 1:
        attributes["gen_ai.request.choice.count"] = request.n
    return attributes
