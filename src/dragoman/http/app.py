"""The server as one ASGI application.

An `App` can be served by `server` or mounted at any path of another ASGI application. A request
passes the layers of `middleware` and the `router`, which calls the handler of its route. This
module only connects these parts; `routes` holds the handlers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.batches.service import BatchOptions, BatchService
from dragoman.config import SettingsError, update_live_settings
from dragoman.http.asgi import Receive, Scope, Send
from dragoman.http.auth import KeyGuard
from dragoman.http.body import BodyLimit, BodyReader
from dragoman.http.metrics import Metrics
from dragoman.http.middleware import HostGuard, HostPolicy, RequestMiddleware, get_request
from dragoman.http.network.body_budget import BodyBudget
from dragoman.http.respond import Responder
from dragoman.http.router import Router
from dragoman.http.routes import (
    admin,
    chat,
    completions,
    conversations,
    embeddings,
    health,
    messages,
    models,
    ollama,
    ollama_models,
    rerank,
    responses,
    tokenize,
)
from dragoman.http.routes.batches import batches, files
from dragoman.http.routes.batches.line_sender import LineSender, OwnerGuard
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.readiness import Readiness
from dragoman.http.stream import StreamClock
from dragoman.http.websocket import WebSocketSessions
from dragoman.keys.key_store import KeyChanges
from dragoman.keys.rate_limits import get_charge
from dragoman.responses.background import BackgroundRuns
from dragoman.responses.service import ResponseService
from dragoman.runtime import Runtime
from dragoman.telemetry.loop_watch import LoopWatch
from dragoman.telemetry.observer import RequestObserver
from dragoman.telemetry.record import RequestRecord
from dragoman.telemetry.spans import Tracing

log = logging.getLogger("dragoman.server")
ROUTE_MAKERS = (
    chat.make_routes,
    completions.make_routes,
    embeddings.make_routes,
    rerank.make_routes,
    messages.make_routes,
    responses.make_routes,
    conversations.make_routes,
    files.make_routes,
    batches.make_routes,
    models.make_routes,
    tokenize.make_routes,
    ollama.make_routes,
    ollama_models.make_routes,
    admin.make_routes,
    health.make_routes,
)


class App:
    """The server as an ASGI callable."""

    def __init__(self, runtime: Runtime, local: bool) -> None:
        """`local`: the app is a server of its own, and not mounted in another app."""
        settings = runtime.settings
        self._clock = clock = StreamClock(settings.patience, settings.ping)
        self._log_level = settings.log_level
        self._reloading: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # on which requests are served
        self.runtime = runtime
        self.settings = settings
        self.observer = RequestObserver(
            Tracing(runtime.tracer_provider),
            logs_content=settings.log_prompts,
            sends_timings=settings.timings,
        )
        self.metrics = Metrics(runtime.services, self.observer, lambda: len(clock), runtime.keys)
        self._loop_watch = LoopWatch()
        self.responder = responder = Responder(clock, self.observer)
        responder.request_timeout = settings.request_timeout
        background = BackgroundRuns(
            responder.track_background,
            lambda: responder.start_timer().record,
            self.metrics.count_error,
            self._observe_background,
        )
        self.responses = ResponseService(
            runtime.services, runtime.state, background, runtime.remote_tools
        )
        self.body_limit = BodyLimit(
            settings, runtime.services.models.list_loaded, BodyBudget(runtime.memory)
        )
        self.websockets = WebSocketSessions(self.body_limit)
        self.readiness = Readiness(responder, runtime.services.models, self.metrics)
        self.router = Router([])
        self.batches = self._make_batch_service()
        self.context = RouteContext(
            runtime=runtime,
            responses=self.responses,
            batches=self.batches,
            reader=BodyReader(settings, self.body_limit, runtime.state.get_signer),
            responder=responder,
            websockets=self.websockets,
            metrics=self.metrics,
            observer=self.observer,
            readiness=self.readiness,
            router=self.router,
        )
        for make_routes in ROUTE_MAKERS:
            for route in make_routes(self.context):
                self.router.add(route)
        runtime.keys.on_change = self._record_key_changes
        runtime.keys.set_routes(route.name for route in self.router.routes)
        self._app = self._wrap_routes(local)

    def _make_batch_service(self) -> BatchService:
        """Make the service for batches, whose lines pass the routes like other requests."""
        runtime = self.runtime
        guard = OwnerGuard(self.router.dispatch, runtime.keys, runtime.services.limiter)
        middleware = RequestMiddleware(
            guard, self.metrics, self.router, self.observer, lambda request, error: None
        )
        options = BatchOptions(
            concurrency=self.settings.batch_requests,
            is_persistent=runtime.state.is_persistent,
            get_body_limit=self.body_limit.get,
        )
        sender = LineSender(middleware)
        return BatchService(runtime.state.get_store, runtime.files, sender.send, options)

    def _wrap_routes(self, local: bool) -> RequestMiddleware:
        """Put the layers of middleware around the routes."""
        runtime, settings = self.runtime, self.settings
        is_shared = settings.allow_open or bool(settings.allowed_host)
        key_guard = KeyGuard(
            self._dispatch,
            runtime.keys,
            runtime.services.limiter,
            runtime.audit,
            local=local and settings.is_loopback and not is_shared,
            allows_debug=settings.debug_header,
        )
        policy = HostPolicy(settings) if local else None
        guarded = HostGuard(key_guard, policy, lambda: runtime.keys.required)
        return RequestMiddleware(
            guarded, self.metrics, self.router, self.observer, key_guard.report_error
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._start_services()
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    def _start_services(self) -> None:
        """Start the background services on the running event loop."""
        self.metrics.loop_lag.start()
        self._loop_watch.start()
        self.batches.start()

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        self._loop = None
        self.metrics.loop_lag.stop()
        self._loop_watch.stop()
        await self.batches.aclose()
        await self.responses.aclose()
        await self.runtime.aclose()

    def reload(self) -> None:
        """Start to read keys and settings again."""
        self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        runtime = self.runtime
        runtime.audit.reopen()
        try:
            if await runtime.keys.reload() is None:
                return  # `KeyStore.reload` has logged the reason
            new = await asyncio.to_thread(runtime.load_settings)
        except SettingsError as error:
            log.error("keeping the previous settings: %s", error)
            return
        changes = update_live_settings(self.settings, new)
        self._apply_settings()
        runtime.audit.record("reload", {"settings": list(changes.applied)})
        log.info("settings reloaded; changed: %s", ", ".join(changes.applied) or "none")
        if changes.need_restart:
            log.warning("these settings need a restart: %s", ", ".join(changes.need_restart))

    def _apply_settings(self) -> None:
        """Pass changed settings to the services that keep copies of them."""
        settings, services = self.settings, self.runtime.services
        self._clock.set_times(settings.patience, settings.ping)
        self.responder.request_timeout = settings.request_timeout
        services.admission.update(settings.queue, settings.load_wait)
        services.models.policy = replace(services.models.policy, wait=settings.load_wait)
        if settings.log_level != self._log_level:
            self._log_level = settings.log_level
            logging.getLogger("dragoman").setLevel(settings.log_level.upper())

    def _record_key_changes(self, changes: KeyChanges) -> None:
        if changes:
            self.runtime.audit.record("keys_changed", to_builtins(changes))

    @contextmanager
    def _observe_background(self) -> Iterator[RequestRecord]:
        """Observe a response that outlives its request, and count it as one of its owner's."""
        with get_charge().share(), self.observer.observe_child("BACKGROUND") as record:
            yield record

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.router.dispatch(get_request(scope))

    def drain(self, seconds: float) -> None:
        """Accept no new requests; those in progress may take this long to finish."""
        self.responder.drain_seconds = seconds
        self.websockets.drain(seconds)
        self.batches.drain()
