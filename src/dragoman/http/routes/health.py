"""Routes about the server itself: health, metrics, documentation."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError, ModelLoading, Unavailable
from dragoman.http import metrics, pages
from dragoman.http.asgi import RequestContext
from dragoman.http.pages.openapi import render_document
from dragoman.http.router import Handler, Route
from dragoman.http.routes.context import RouteContext

HTML = b"text/html; charset=utf-8"
DOCS_PAGE = Path(pages.__file__).with_name("docs.html")


class Readiness:
    """Whether requests can be served now."""

    def __init__(self, context: RouteContext) -> None:
        self._responder = context.responder
        self._registry = context.runtime.services.models
        self._metrics = context.metrics
        self.startup_model: str | None = None  # must be loaded before the server is ready

    def find_problem(self) -> DragomanError | None:
        """Why requests cannot be served now, if they cannot."""
        if self._responder.drain_seconds is not None:
            return self._responder.make_draining_error()
        if self.startup_model is not None:
            if self._registry.get(self.startup_model).state != "ready":
                return ModelLoading(f"The model `{self.startup_model}` is loading.", retry_after=1)
            self.startup_model = None
        for state in self._metrics.get_model_states():
            if not state.up:
                return Unavailable(
                    f"The engine of `{state.model}` is being restarted.", retry_after=1
                )
        return None


class HealthHandlers:
    """Handlers that report on the server."""

    def __init__(self, context: RouteContext, readiness: Readiness) -> None:
        self._readiness = readiness
        self._metrics = context.metrics
        self._router = context.router

    async def get_liveness(self, request: RequestContext) -> None:
        await request.send_response(200, b'{"status":"live"}')

    async def get_readiness(self, request: RequestContext) -> None:
        problem = self._readiness.find_problem()
        if problem is not None:
            raise problem
        await request.send_response(200, b'{"status":"ready"}')

    async def get_root(self, request: RequestContext) -> None:
        await request.send_response(200, b'{"object":"dragoman","docs":"/docs"}')

    async def get_metrics(self, request: RequestContext) -> None:
        await request.send_response(200, self._metrics.render(), metrics.CONTENT_TYPE)

    async def get_openapi(self, request: RequestContext) -> None:
        await request.send_response(200, render_document(self._router.routes))

    async def get_docs(self, request: RequestContext) -> None:
        await request.send_response(200, DOCS_PAGE.read_bytes(), HTML)


def make_routes(context: RouteContext, readiness: Readiness) -> list[Route]:
    handlers = HealthHandlers(context, readiness)

    def make_open(path: str, handler: Handler, summary: str) -> Route:
        return Route(path=path, method="GET", handler=handler, summary=summary, access="open")

    def make_guarded(path: str, handler: Handler, summary: str) -> Route:
        return Route(path=path, method="GET", handler=handler, summary=summary)

    return [
        make_guarded("/metrics", handlers.get_metrics, "Get metrics in Prometheus format."),
        make_guarded("/openapi.json", handlers.get_openapi, "Get this document."),
        make_open("/docs", handlers.get_docs, "Show this document as a page."),
        make_open("/health", handlers.get_readiness, "Same as `/health/ready`."),
        make_open("/health/live", handlers.get_liveness, "Check that the process responds."),
        make_open("/health/ready", handlers.get_readiness, "Check that requests can be served."),
        make_open("/", handlers.get_root, "Identify the server."),
    ]
