"""The metrics of the server, in Prometheus' text format.

Counting must cost next to nothing per token, so the counts are plain numbers here and become metric
families only when they are collected. No value is estimated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec import Struct
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dragoman.errors import DragomanError
from dragoman.events import Usage
from dragoman.pipeline.services import Services
from dragoman.replay.service import ReplayStats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
# Bounds of the histograms, in seconds.
TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUEST_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """A histogram that costs one bisection per value."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def to_metric(self, name: str, description: str) -> Metric:
        total, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return HistogramMetricFamily(name, description, buckets=rows, sum_value=self.sum)


class ModelState(Struct, frozen=True):
    """The state of a loaded model at one moment."""

    model: str
    up: bool
    running: int
    waiting: int
    restarts: int


class Metrics(Collector):
    """All metrics of one server."""

    def __init__(self, services: Services, count_streams: Callable[[], int]) -> None:
        self._services = services
        self._count_streams = count_streams
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self.errors: Counter[str] = Counter()  # by code
        self.succeeded = 0
        self.usage = Usage()
        self.first_token = Histogram(REQUEST_BOUNDS)
        self.inter_token = Histogram(TOKEN_BOUNDS)
        self.duration = Histogram(REQUEST_BOUNDS)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_error(self, error: DragomanError) -> None:
        """Count an error that does not end a request: over a WebSocket, or in the background."""
        self.errors[error.code or error.type] += 1

    def get_model_states(self) -> Iterator[ModelState]:
        for model in self._services.models.list_loaded():
            engine: object = model.engine
            up = getattr(engine, "state", "ready") == "ready"
            restarts: int = getattr(engine, "restarts", 0)
            gate = self._services.admission.get_gate(model)
            yield ModelState(model.id, up, gate.running, gate.waiting, restarts)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_requests()
        yield self.first_token.to_metric(
            "dragoman_time_to_first_token_seconds", "Time from the request to its first token."
        )
        yield self.inter_token.to_metric(
            "dragoman_inter_token_seconds", "Time between two deltas of an answer."
        )
        yield self.duration.to_metric("dragoman_request_seconds", "Duration of requests.")
        yield from self._collect_engines()
        yield from self._collect_grammars()
        yield from self._collect_replay()

    def _collect_replay(self) -> Iterator[Metric]:
        replay = self._services.replay
        stats = ReplayStats() if replay is None else replay.stats
        yield CounterMetricFamily(
            "dragoman_chat_prompt_tokens", "Tokens of chat prompts.", value=stats.prompt_tokens
        )
        yield CounterMetricFamily(
            "dragoman_chat_prompt_known_tokens",
            "Tokens of chat prompts that extend an earlier prompt and its answer.",
            value=stats.reused_tokens,
        )
        yield CounterMetricFamily(
            "dragoman_recalled_turns",
            "Earlier turns replayed token by token.",
            value=stats.replayed_turns,
        )
        skipped = CounterMetricFamily(
            "dragoman_turns_not_recalled", "Turns not replayed, by reason.", labels=["reason"]
        )
        for reason, count in stats.skipped.items():
            skipped.add_metric([reason], count)
        yield skipped

    def _collect_grammars(self) -> Iterator[Metric]:
        stats = self._services.compiler.stats
        yield GaugeMetricFamily(
            "dragoman_grammars_cached", "Compiled grammars in the cache.", value=stats.entries
        )
        yield GaugeMetricFamily(
            "dragoman_grammars_cached_bytes", "Size of the grammar cache.", value=stats.bytes
        )
        yield GaugeMetricFamily(
            "dragoman_grammars_compiling", "Grammars being compiled.", value=stats.working
        )
        yield GaugeMetricFamily(
            "dragoman_grammars_waiting", "Grammars waiting to be compiled.", value=stats.waiting
        )
        requested = CounterMetricFamily(
            "dragoman_grammars",
            "Requested grammars, by whether they were cached.",
            labels=["cached"],
        )
        requested.add_metric(["yes"], stats.hits)
        requested.add_metric(["no"], stats.misses)
        yield requested
        yield CounterMetricFamily(
            "dragoman_grammar_worker_restarts",
            "Restarts of grammar compiler processes.",
            value=stats.restarts,
        )

    def _collect_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "dragoman_requests", "Finished requests.", labels=["route", "status"]
        )
        for (route, status), count in self.requests.items():
            requests.add_metric([route, str(status)], count)
        yield requests
        errors = CounterMetricFamily(
            "dragoman_errors", "Failed requests, by code.", labels=["code"]
        )
        for code, count in self.errors.items():
            errors.add_metric([code], count)
        yield errors
        yield CounterMetricFamily(
            "dragoman_succeeded", "Requests that succeeded.", value=self.succeeded
        )
        tokens = CounterMetricFamily("dragoman_tokens", "Tokens, by kind.", labels=["kind"])
        usage = self.usage
        for kind, count in (("prompt", usage.prompt), ("completion", usage.completion)):
            tokens.add_metric([kind], count)
        yield tokens
        yield CounterMetricFamily(
            "dragoman_prompt_cache_hit_tokens",
            "Prompt tokens that were in the engine's cache.",
            value=usage.cached,
        )

    def _collect_engines(self) -> Iterator[Metric]:
        streams = self._count_streams()
        yield GaugeMetricFamily("dragoman_streams_open", "Open streams.", value=streams)
        up = GaugeMetricFamily("dragoman_engine_up", "1 while the engine runs.", labels=["model"])
        running = GaugeMetricFamily(
            "dragoman_requests_running", "Requests that an engine processes.", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "dragoman_requests_waiting", "Requests in the queue.", labels=["model"]
        )
        restarts = CounterMetricFamily(
            "dragoman_engine_restarts", "Engine restarts.", labels=["model"]
        )
        for state in self.get_model_states():
            up.add_metric([state.model], float(state.up))
            running.add_metric([state.model], state.running)
            waiting.add_metric([state.model], state.waiting)
            restarts.add_metric([state.model], state.restarts)
        yield from (up, running, waiting, restarts)
