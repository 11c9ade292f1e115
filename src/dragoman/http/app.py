"""The server as one ASGI application.

An `App` can be served by `server` or mounted at any path of another ASGI application. A request
passes the layers of `middleware` and the `router`, which calls the handler of its route. This
module only connects these parts; `routes` holds the handlers.
"""

from __future__ import annotations

from dragoman.config import LOOPBACK
from dragoman.http.asgi import Receive, Scope, Send
from dragoman.http.auth import ApiKeys
from dragoman.http.body import BodyReader
from dragoman.http.metrics import Metrics
from dragoman.http.middleware import HostGuard, KeyGuard, RequestMiddleware, get_request, parse_host
from dragoman.http.respond import Responder
from dragoman.http.router import Router
from dragoman.http.routes import (
    admin,
    chat,
    completions,
    conversations,
    embeddings,
    health,
    infill,
    messages,
    models,
    responses,
    tokenize,
)
from dragoman.http.routes.context import RouteContext
from dragoman.http.routes.readiness import Readiness
from dragoman.http.stream import StreamClock
from dragoman.http.websocket import WebSocketSessions
from dragoman.responses.background import BackgroundRuns
from dragoman.responses.service import ResponseService
from dragoman.runtime import Runtime
from dragoman.telemetry.observer import RequestObserver
from dragoman.telemetry.spans import Tracing

ROUTE_MAKERS = (
    chat.make_routes,
    completions.make_routes,
    infill.make_routes,
    embeddings.make_routes,
    messages.make_routes,
    responses.make_routes,
    conversations.make_routes,
    models.make_routes,
    tokenize.make_routes,
    admin.make_routes,
    health.make_routes,
)


class App:
    """The server as an ASGI callable."""

    def __init__(self, runtime: Runtime, keys: ApiKeys, local: bool) -> None:
        """`local`: only requests that name this machine as their host are served."""
        settings = runtime.settings
        clock = StreamClock(settings.patience, settings.ping)
        self.runtime = runtime
        self.settings = settings
        self.observer = RequestObserver(
            Tracing(runtime.tracer_provider),
            logs_content=settings.log_prompts,
            sends_timings=settings.timings,
        )
        self.metrics = Metrics(runtime.services, self.observer, lambda: len(clock))
        self.responder = responder = Responder(clock, self.observer)
        background = BackgroundRuns(
            lambda: responder.runs.track(None),
            lambda: responder.start_timer().record,
            self.metrics.count_error,
            lambda: self.observer.observe_child("BACKGROUND"),
        )
        self.responses = ResponseService(
            runtime.services, runtime.state, background, runtime.remote_tools
        )
        self.websockets = WebSocketSessions(settings.body_limit)
        self.readiness = Readiness(responder, runtime.services.models, self.metrics)
        self.router = Router([])
        self.context = RouteContext(
            runtime=runtime,
            responses=self.responses,
            reader=BodyReader(settings, runtime.state.get_signer),
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
        allowed = {parse_host(host.encode()) or "" for host in settings.allowed_host}
        hosts = frozenset({*LOOPBACK, "[::1]", *allowed}) if local else None
        key_guard = KeyGuard(self._dispatch, keys, local=local, allows_debug=settings.debug_header)
        guarded = HostGuard(key_guard, hosts)
        self._app = RequestMiddleware(guarded, self.metrics, self.router, self.observer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.metrics.loop_lag.start()
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        self.metrics.loop_lag.stop()
        await self.responses.aclose()
        await self.runtime.aclose()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.router.dispatch(get_request(scope))

    def drain(self, seconds: float) -> None:
        """Accept no new requests; those in progress may take this long to finish."""
        self.responder.drain_seconds = seconds
        self.websockets.drain(seconds)
