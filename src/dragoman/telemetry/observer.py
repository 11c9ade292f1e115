"""Follows requests from their start to their end: log lines, metrics of models, spans.

A request over HTTP, a message over a WebSocket and a response in the background are observed in the
same way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dragoman.telemetry import access_log
from dragoman.telemetry.model_metrics import ModelMetrics
from dragoman.telemetry.record import RequestRecord, get_record, use_record
from dragoman.telemetry.spans import Tracing
from dragoman.types import NO_REPORT, ReportOptions

CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected


class RequestObserver:
    """Observes the requests of one server."""

    def __init__(
        self, tracing: Tracing, *, logs_content: bool = False, sends_timings: bool = False
    ) -> None:
        self.models: dict[str, ModelMetrics] = {}
        self._tracing = tracing
        self._logs_content = logs_content  # the operator allows prompts in debug logs
        self._options = ReportOptions(timings=sends_timings)

    def get_model(self, model: str) -> ModelMetrics:
        """Return the metrics of a model that exists."""
        metrics = self.models.get(model)
        if metrics is None:
            metrics = self.models[model] = ModelMetrics()
        return metrics

    def observe_child(self, method: str) -> Observation:
        """Observe work that the current request starts, which succeeds unless it says otherwise."""
        parent = get_record()
        child = parent.make_child(method)
        headers = {"traceparent": parent.traceparent} if parent.traceparent else {}
        return self.observe(child, headers)

    def observe(self, record: RequestRecord, headers: Mapping[str, str]) -> Observation:
        """Observe a request inside a block: its server sets the status before the block ends."""
        return Observation(self, record, headers)

    def start(self, record: RequestRecord, headers: Mapping[str, str]) -> None:
        """Start to observe a request. Its headers may name the trace that it belongs to."""
        if self._options != NO_REPORT:
            record.options |= self._options
        record.logs_content = self._logs_content and access_log.log.isEnabledFor(logging.DEBUG)
        self._tracing.start(record, headers)

    def finish(self, record: RequestRecord) -> None:
        """Report a request that has ended, from its complete record."""
        record.seconds = record.elapsed
        if record.model:
            self.get_model(record.model).add(record)
        access_log.log_answer(record)
        access_log.log_request(record, logging.DEBUG if record.is_probe else logging.INFO)
        self._tracing.finish(record)


class Observation:
    """One request while it is observed. Its record is the current one inside the block."""

    __slots__ = ("_current", "_headers", "_observer", "_record")

    def __init__(
        self, observer: RequestObserver, record: RequestRecord, headers: Mapping[str, str]
    ) -> None:
        self._observer = observer
        self._record = record
        self._headers = headers

    def __enter__(self) -> RequestRecord:
        self._observer.start(self._record, self._headers)
        self._current = use_record(self._record)
        return self._current.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._current.__exit__()
        if kind is not None:
            self._record.status = self._record.status or CLIENT_CLOSED_REQUEST
        self._observer.finish(self._record)
