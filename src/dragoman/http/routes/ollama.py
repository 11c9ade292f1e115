"""Routes of Ollama's API that generate and embed. `ollama_models` has those that manage models."""

from __future__ import annotations

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.context import RouteContext
from dragoman.protocols.ollama import DIALECT, VERSION, OllamaVersion
from dragoman.protocols.shared.openai import encode


def make_routes(context: RouteContext) -> list[Route]:
    async def get_version(request: RequestContext) -> None:
        await request.send_response(200, encode(OllamaVersion(VERSION)))

    group = RouteGroup("/api", DIALECT)
    return [
        group.make(
            "GET",
            "/version",
            get_version,
            "Get the version of Ollama's API.",
            response_type=OllamaVersion,
        )
    ]
