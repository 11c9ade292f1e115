"""What is counted and measured for each model, in Prometheus' terms.

Counting must cost next to nothing per token, so the counts are plain numbers here and become metric
families only when they are collected. Only models that exist have a label, so a client cannot add
one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from dragoman.events import Usage
from dragoman.telemetry.record import RequestRecord
from dragoman.types.limits import PRIORITIES

# Bounds of the histograms, in seconds.
TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REQUEST_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SPEED_BOUNDS = (1.0, 2.5, 5.0, 10.0, 20.0, 35.0, 50.0, 75.0, 100.0, 150.0, 250.0, 500.0, 1000.0)


class Histogram:
    """A histogram that costs one bisection per value."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def make_rows(self) -> list[tuple[str, float]]:
        """Return the upper bound of each bucket, and how many values are at most that."""
        total, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return rows


class ModelMetrics:
    """The numbers of one model."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.cancelled_tokens = self.warnings = self.tool_calls = 0
        self.finishes: Counter[str] = Counter()  # by reason
        self.first_token = Histogram(REQUEST_BOUNDS)
        self.inter_token = Histogram(TOKEN_BOUNDS)
        self.queue = {priority: Histogram(REQUEST_BOUNDS) for priority in PRIORITIES}
        self.prefill = Histogram(REQUEST_BOUNDS)
        self.speed = Histogram(SPEED_BOUNDS)
        self.load = Histogram(REQUEST_BOUNDS)

    def add(self, record: RequestRecord) -> None:
        """Add a request that has ended."""
        queued = prefill = None
        for stage in record.list_stages():
            if stage.name == "queue":
                queued = (queued or 0.0) + stage.end - stage.start
            elif stage.name == "prefill":
                prefill = (prefill or 0.0) + stage.end - stage.start
        speed = record.tokens_per_second
        self.cancelled_tokens += record.unfinished_tokens
        self.warnings += len(record.warnings)
        for choice in record.choices:
            self.tool_calls += len(choice.call_names)
        for reason in record.finishes:
            self.finishes[reason] += 1
        if queued is not None:
            priority = PRIORITIES[0] if record.request is None else record.request.priority
            self.queue[priority].observe(queued)
        if prefill is not None:
            self.prefill.observe(prefill)
        if speed is not None:
            self.speed.observe(speed)


# The attribute of each histogram, its name and what it measures.
HISTOGRAMS = (
    (
        "first_token",
        "dragoman_time_to_first_token_seconds",
        "Time from the request to its first token.",
    ),
    ("inter_token", "dragoman_inter_token_seconds", "Time between two deltas of an answer."),
    ("prefill", "dragoman_prefill_seconds", "Time that engines took to process the prompt."),
    (
        "speed",
        "dragoman_generation_tokens_per_second",
        "Tokens per second of an answer, after its prompt was processed.",
    ),
    ("load", "dragoman_model_load_seconds", "Time that models took to load."),
)
COUNTERS = (
    (
        "cancelled_tokens",
        "dragoman_cancelled_tokens",
        "Tokens generated for answers that were cancelled or failed.",
    ),
    ("warnings", "dragoman_warnings", "Warnings sent to clients."),
    ("tool_calls", "dragoman_tool_calls", "Tool calls that models made."),
)


def collect_models(models: Mapping[str, ModelMetrics]) -> Iterator[Metric]:
    """Yield the metrics of all models."""
    tokens = CounterMetricFamily("dragoman_tokens", "Tokens, by kind.", labels=["kind", "model"])
    cached = CounterMetricFamily(
        "dragoman_prompt_cache_hit_tokens",
        "Prompt tokens that were in the engine's cache.",
        labels=["model"],
    )
    finishes = CounterMetricFamily(
        "dragoman_finishes", "Finished choices, by reason.", labels=["reason", "model"]
    )
    for model, metrics in models.items():
        usage = metrics.usage
        kinds = {"prompt": usage.prompt, "completion": usage.completion}
        for kind, count in (kinds | {"reasoning": usage.reasoning}).items():
            tokens.add_metric([kind, model], count)
        cached.add_metric([model], usage.cached)
        for reason, count in metrics.finishes.items():
            finishes.add_metric([reason, model], count)
    yield from (tokens, cached, finishes)
    for attribute, name, description in COUNTERS:
        counter = CounterMetricFamily(name, description, labels=["model"])
        for model, metrics in models.items():
            counter.add_metric([model], getattr(metrics, attribute))
        yield counter
    queue = HistogramMetricFamily(
        "dragoman_queue_seconds",
        "Time that requests waited for a slot.",
        labels=["model", "priority"],
    )
    for model, metrics in models.items():
        for priority, waits in metrics.queue.items():
            queue.add_metric([model, priority], waits.make_rows(), waits.sum)
    yield queue
    for attribute, name, description in HISTOGRAMS:
        family = HistogramMetricFamily(name, description, labels=["model"])
        for model, metrics in models.items():
            histogram: Histogram = getattr(metrics, attribute)
            family.add_metric([model], histogram.make_rows(), histogram.sum)
        yield family
