"""The services that handlers use."""

from __future__ import annotations

from msgspec import Struct

from dragoman.batches.service import BatchService
from dragoman.http.body import BodyReader
from dragoman.http.metrics import Metrics
from dragoman.http.respond import Responder
from dragoman.http.router import Router
from dragoman.http.routes.shared.readiness import Readiness
from dragoman.http.websocket import WebSocketSessions
from dragoman.responses.service import ResponseService
from dragoman.runtime import Runtime
from dragoman.telemetry.observer import RequestObserver


class RouteContext(Struct, frozen=True, kw_only=True, eq=False):
    """Passed to every function that makes routes."""

    runtime: Runtime
    responses: ResponseService
    batches: BatchService
    reader: BodyReader
    responder: Responder
    websockets: WebSocketSessions
    metrics: Metrics
    observer: RequestObserver
    readiness: Readiness
    router: Router
