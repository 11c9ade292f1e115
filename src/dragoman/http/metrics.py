"""The metrics of the server, in Prometheus' text format.

Counting must cost next to nothing per token, so the counts are plain numbers here and become metric
families only when they are collected. No value is estimated.

The usage of a key is private, and a model out of its scope does not exist for it. So an ordinary
key sees its own counts, those of its models, and totals. Admin keys see everything, and so do keys
whose `routes` name the metrics route: the operator has allowed it explicitly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
from dragoman.keys import KeyStore
from dragoman.pipeline.services import Services
from dragoman.replay.service import ReplayStats
from dragoman.telemetry.loop_lag import LoopLag
from dragoman.telemetry.model_metrics import REQUEST_BOUNDS, Histogram, collect_models
from dragoman.telemetry.observer import RequestObserver
from dragoman.types.limits import PRIORITIES, Priority

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
# The field of a model's state, the name of its gauge and what it shows.
GAUGES = (
    ("is_up", "dragoman_engine_up", "1 while the engine runs."),
    ("running", "dragoman_requests_running", "Requests that an engine is processing."),
    ("slots", "dragoman_slots", "Choices that can be generated at the same time."),
    ("busy_slots", "dragoman_slots_busy", "Choices that are being generated."),
    ("tokens", "dragoman_kv_tokens", "Tokens that running requests have in the KV cache."),
    ("max_tokens", "dragoman_kv_tokens_limit", "Tokens that the KV cache of all slots can hold."),
)
# The name of a counter of keys, the field of their usage and what it shows.
KEY_COUNTERS = (
    ("dragoman_key_requests", "total_requests", "Requests of a key."),
    ("dragoman_key_refusals", "total_refusals", "Requests refused by a limit of their key."),
    ("dragoman_key_tokens", "total_tokens", "Tokens of prompts and answers of a key."),
)
DOWN_STATES = ("starting", "restarting", "stopped", "unreachable")  # of engines that run elsewhere
FAILURES = ("died", "hung", "load_failed")  # after these, an engine is restarted


class ModelState(Struct, frozen=True):
    """The state of a loaded model at one moment."""

    model: str
    is_up: bool
    running: int
    waiting: dict[Priority, int]
    failure: str  # why the engine is not up
    retry_after: float  # seconds until it may be up again
    restarts: Mapping[str, int]  # by cause
    statistics: Mapping[str, float]  # what the engine measures about itself, by name
    slots: int | None
    busy_slots: int
    tokens: int
    max_tokens: int | None


class Metrics(Collector):
    """All metrics of one server."""

    def __init__(
        self,
        services: Services,
        observer: RequestObserver,
        count_streams: Callable[[], int],
        keys: KeyStore,
    ) -> None:
        self._services = services
        self._keys = keys
        self._observer = observer
        self._count_streams = count_streams
        services.models.on_loaded = lambda model, seconds: observer.get_model(model).load.observe(
            seconds
        )
        self.requests: Counter[tuple[str, int, str]] = Counter()  # by route, status and model
        self.errors: Counter[str] = Counter()  # by code
        self.succeeded = 0
        self.duration = Histogram(REQUEST_BOUNDS)
        self.loop_lag = LoopLag()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_error(self, error: DragomanError) -> None:
        """Count an error that does not end a request: over a WebSocket, or in the background."""
        self.errors[error.code or error.type] += 1

    def get_model_states(self) -> Iterator[ModelState]:
        for model in self._services.models.list_loaded():
            engine: object = model.engine
            # An engine that a program supplies may use these names for something else.
            is_stalled = model.watch is not None and model.watch.is_stalled
            up = getattr(engine, "state", None) not in DOWN_STATES and not is_stalled
            by_failure = getattr(engine, "restarts_by_failure", None)
            retry_after = getattr(engine, "retry_after", None)
            gate = self._services.admission.get_gate(model)
            context = model.capabilities.context
            yield ModelState(
                model=model.id,
                is_up=up,
                running=gate.running,
                waiting={name: gate.count_waiting(name) for name in PRIORITIES},
                failure="stalled" if is_stalled else str(getattr(engine, "failure", None)),
                retry_after=retry_after if isinstance(retry_after, float) else 1.0,
                restarts=by_failure if isinstance(by_failure, Counter) else {},
                statistics=_read_statistics(engine),
                slots=gate.slots,
                busy_slots=gate.busy_slots,
                tokens=gate.count_tokens(),
                max_tokens=context and gate.slots and context * gate.slots,
            )

    def render(self, owner: str, *, is_admin: bool) -> bytes:
        """Render what the owner of a key may see; without keys, everybody sees everything."""
        entry = self._keys.find_owner(owner)
        if is_admin or not owner or (entry is not None and entry.scope.names_routes):
            return generate_latest(self._registry)
        name = "" if entry is None else entry.name
        models = (source.id for source in self._services.models.names.list_usable(owner))
        return generate_latest(OwnerMetrics(self._registry, name, models))

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_requests()
        yield HistogramMetricFamily(
            "dragoman_request_seconds",
            "Duration of requests.",
            buckets=self.duration.make_rows(),
            sum_value=self.duration.sum,
        )
        yield HistogramMetricFamily(
            "dragoman_event_loop_lag_seconds",
            "Time that the event loop keeps requests waiting.",
            buckets=self.loop_lag.histogram.make_rows(),
            sum_value=self.loop_lag.histogram.sum,
        )
        yield from collect_models(self._observer.models)
        yield from self._collect_engines()
        yield from self._collect_grammars()
        yield from self._collect_replay()
        yield from self._collect_keys()

    def _collect_keys(self) -> Iterator[Metric]:
        """Metrics of keys that have a name; their number is that of the entries."""
        named = [entry for entry in self._keys.entries if entry.name]
        for counter, field, description in KEY_COUNTERS:
            family = CounterMetricFamily(counter, description, labels=["key"])
            for entry in named:
                usage = self._services.limiter.get_usage(entry.owner)
                family.add_metric([entry.name], getattr(usage, field))
            yield family
        running = GaugeMetricFamily(
            "dragoman_key_requests_running",
            "Requests of a key at this moment, background responses included.",
            labels=["key"],
        )
        for entry in named:
            usage = self._services.limiter.get_usage(entry.owner)
            running.add_metric([entry.name], usage.running)
        yield running

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
            "dragoman_requests", "Finished requests.", labels=["route", "status", "model"]
        )
        for (route, status, model), count in self.requests.items():
            requests.add_metric([route, str(status), model], count)
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

    def _collect_engines(self) -> Iterator[Metric]:
        streams = self._count_streams()
        yield GaugeMetricFamily("dragoman_streams_open", "Open streams.", value=streams)
        states = list(self.get_model_states())
        for field, name, description in GAUGES:
            gauge = GaugeMetricFamily(name, description, labels=["model"])
            for state in states:
                value = getattr(state, field)
                if value is not None:
                    gauge.add_metric([state.model], float(value))
            yield gauge
        waiting = GaugeMetricFamily(
            "dragoman_requests_waiting", "Requests in the queue.", labels=["model", "priority"]
        )
        for state in states:
            for priority, count in state.waiting.items():
                waiting.add_metric([state.model, priority], count)
        yield waiting
        restarts = CounterMetricFamily(
            "dragoman_engine_restarts", "Engine restarts, by reason.", labels=["model", "reason"]
        )
        for state in states:
            for reason in FAILURES:
                restarts.add_metric([state.model, reason], state.restarts.get(reason, 0))
        yield restarts
        yield from _collect_statistics(states)


class OwnerMetrics(CollectorRegistry):
    """The metrics without rows about other keys, and about models that a key may not use."""

    def __init__(self, registry: CollectorRegistry, name: str, models: Iterable[str]) -> None:
        super().__init__()
        self._all = registry
        self._name = name  # of the key
        self._models = {"", *models}

    def collect(self) -> Iterator[Metric]:
        for family in self._all.collect():
            family.samples = [sample for sample in family.samples if self._shows(sample.labels)]
            yield family

    def _shows(self, labels: Mapping[str, str]) -> bool:
        is_own = labels.get("key", self._name) == self._name
        return is_own and labels.get("model", "") in self._models


def _read_statistics(engine: object) -> Mapping[str, float]:
    """Return the statistics of an engine in a child process; empty for any other engine."""
    statistics = getattr(engine, "statistics", None)
    is_ours = hasattr(engine, "restarts_by_failure") and isinstance(statistics, dict)
    return statistics if is_ours and statistics is not None else {}


def _collect_statistics(states: Sequence[ModelState]) -> Iterator[Metric]:
    """Yield a gauge for each number that engines report about themselves."""
    for name in sorted({name for state in states for name in state.statistics}):
        gauge = GaugeMetricFamily(
            f"dragoman_engine_{name}", "A number that the engine reports.", labels=["model"]
        )
        for state in states:
            if name in state.statistics:
                gauge.add_metric([state.model], state.statistics[name])
        yield gauge
