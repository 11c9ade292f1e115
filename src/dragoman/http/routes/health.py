"""Routes about the server itself: health, metrics, documentation."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dragoman.http import metrics, pages
from dragoman.http.asgi import RequestContext
from dragoman.http.pages.openapi import render_document
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext

HTML = b"text/html; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"
DOCS_PAGE = Path(pages.__file__).with_name("docs.html")


class HealthHandlers:
    """Handlers that report on the server."""

    def __init__(self, context: RouteContext) -> None:
        self._readiness = context.readiness
        self._metrics = context.metrics
        self._router = context.router
        self._document: tuple[int, bytes] = (0, b"")  # the number of its routes, and the text

    async def get_liveness(self, request: RequestContext) -> None:
        await request.send_response(200, b'{"status":"live"}')

    async def get_readiness(self, request: RequestContext) -> None:
        self._readiness.check()
        await request.send_response(200, b'{"status":"ready"}')

    async def get_root(self, request: RequestContext) -> None:
        accepted = request.headers.get(b"accept") or b""
        if any(kind in accepted.lower() for kind in (b"json", b"html")):
            await request.send_response(200, b'{"object":"dragoman","docs":"/docs"}')
        else:  # clients of Ollama look for these words
            await request.send_response(200, b"Ollama is running", TEXT)

    async def get_metrics(self, request: RequestContext) -> None:
        page = self._metrics.render(request.owner, is_admin=request.is_admin)
        await request.send_response(200, page, metrics.CONTENT_TYPE)

    async def get_openapi(self, request: RequestContext) -> None:
        routes = list(self._router.routes)
        if self._document[0] != len(routes):  # takes longer than the event loop may wait
            self._document = len(routes), await asyncio.to_thread(render_document, routes)
        await request.send_response(200, self._document[1])

    async def get_docs(self, request: RequestContext) -> None:
        await request.send_response(200, DOCS_PAGE.read_bytes(), HTML)


def make_routes(context: RouteContext) -> list[Route]:
    handlers = HealthHandlers(context)

    group = RouteGroup("")
    live, ready = handlers.get_liveness, handlers.get_readiness
    return [
        group.make("GET", "/metrics", handlers.get_metrics, "Get metrics in Prometheus format."),
        group.make("GET", "/openapi.json", handlers.get_openapi, "Get this document."),
        group.make("GET", "/docs", handlers.get_docs, "Show this document.", access="open"),
        group.make("GET", "/health", ready, "Same as `/health/ready`.", access="open"),
        group.make("GET", "/health/live", live, "Check that the process runs.", access="open"),
        group.make("GET", "/health/ready", ready, "Check that requests are served.", access="open"),
        group.make("GET", "/", handlers.get_root, "Identify the server.", access="open"),
    ]
