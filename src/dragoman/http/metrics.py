"""What the server measures of itself, in Prometheus' text format.

Counting must cost next to nothing per token, so the counts are plain numbers here and become metric
families only when somebody asks. Nothing is estimated: what was not measured is not shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

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
from dragoman.grammar.compiler.compiler_pool import CompilerStats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """A histogram that costs one bisection a value."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def to_metric(self, name: str, text: str) -> Metric:
        total, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return HistogramMetricFamily(name, text, buckets=rows, sum_value=self.sum)


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
        self.requests: Counter[tuple[str, int]] = Counter()
        self.errors: Counter[str] = Counter()
        self.succeeded = 0
        self.usage = Usage()
        self.first_token = Histogram(SLOW)
        self.inter_token = Histogram(FAST)
        self.duration = Histogram(SLOW)
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_error(self, error: DragomanError) -> None:
        """Count an error that no request ends with: over a socket, or in the background."""
        self.errors[error.code or error.type] += 1

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield self.first_token.to_metric(
            "dragoman_time_to_first_token_seconds", "From the request to its first token."
        )
        yield self.inter_token.to_metric(
            "dragoman_inter_token_seconds", "Between two deltas of one answer."
        )
        yield self.duration.to_metric("dragoman_request_seconds", "From the request to its end.")
        yield from self._gauges()
        yield from self._constraints()
        yield from self._memory()

    def _memory(self) -> Iterator[Metric]:
        state = self._recalls()
        yield CounterMetricFamily(
            "dragoman_chat_prompt_tokens", "Tokens of the prompts of chats.", value=state.tokens
        )
        yield CounterMetricFamily(
            "dragoman_chat_prompt_known_tokens",
            "Those that an earlier prompt or its answer began with, too.",
            value=state.known,
        )
        yield CounterMetricFamily(
            "dragoman_recalled_turns",
            "Earlier turns that went to the model as it wrote them.",
            value=state.recalled,
        )
        lost = CounterMetricFamily(
            "dragoman_turns_not_recalled", "Those that did not, and why.", labels=["reason"]
        )
        for reason, count in state.lost.items():
            lost.add_metric([reason], count)
        yield lost

    def _constraints(self) -> Iterator[Metric]:
        state = self._grammars()
        yield GaugeMetricFamily(
            "dragoman_grammars_cached", "Compiled grammars that are kept.", value=state.entries
        )
        yield GaugeMetricFamily(
            "dragoman_grammars_cached_bytes", "What they take up.", value=state.bytes
        )
        yield GaugeMetricFamily(
            "dragoman_grammars_compiling", "Grammars being compiled.", value=state.working
        )
        yield GaugeMetricFamily(
            "dragoman_grammars_waiting", "Grammars that wait for it.", value=state.waiting
        )
        asked = CounterMetricFamily(
            "dragoman_grammars", "Grammars that were asked for.", labels=["cached"]
        )
        asked.add_metric(["yes"], state.hits)
        asked.add_metric(["no"], state.misses)
        yield asked
        yield CounterMetricFamily(
            "dragoman_grammar_worker_restarts",
            "Times a process that compiles grammars was replaced.",
            value=state.restarts,
        )

    def _counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "dragoman_requests", "Requests that have ended.", labels=["route", "status"]
        )
        for (route, status), count in self.requests.items():
            requests.add_metric([route, str(status)], count)
        yield requests
        errors = CounterMetricFamily(
            "dragoman_errors", "Requests that failed, each counted once.", labels=["code"]
        )
        for code, count in self.errors.items():
            errors.add_metric([code], count)
        yield errors
        yield CounterMetricFamily(
            "dragoman_succeeded", "Requests answered to the end.", value=self.succeeded
        )
        tokens = CounterMetricFamily("dragoman_tokens", "Tokens by kind.", labels=["kind"])
        spent = self.usage
        for kind, count in (("prompt", spent.prompt), ("completion", spent.completion)):
            tokens.add_metric([kind], count)
        yield tokens
        yield CounterMetricFamily(
            "dragoman_prompt_cache_hit_tokens",
            "Prompt tokens that were already in the engine's cache.",
            value=spent.cached,
        )

    def _gauges(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("dragoman_streams_open", "Open streams.", value=self._streams())
        up = GaugeMetricFamily("dragoman_engine_up", "1 while the engine works.", labels=["model"])
        running = GaugeMetricFamily(
            "dragoman_requests_running", "Requests an engine works on.", labels=["model"]
        )
        waiting = GaugeMetricFamily(
            "dragoman_requests_waiting", "Requests in the queue.", labels=["model"]
        )
        restarts = CounterMetricFamily(
            "dragoman_engine_restarts", "Times an engine was started again.", labels=["model"]
        )
        for state in self._models():
            up.add_metric([state.model], float(state.up))
            running.add_metric([state.model], state.running)
            waiting.add_metric([state.model], state.waiting)
            restarts.add_metric([state.model], state.restarts)
        yield from (up, running, waiting, restarts)
