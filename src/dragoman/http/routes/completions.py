"""Routes of text completions."""

from __future__ import annotations

from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.context import RouteContext
from dragoman.http.routes.generation import make_generation_handler
from dragoman.protocols.completions import DIALECT, CompletionRequest, TextCompletion


def make_routes(context: RouteContext) -> list[Route]:
    group = RouteGroup("/v1/completions", DIALECT)
    return [
        group.make(
            "POST",
            "",
            make_generation_handler(context, DIALECT),
            "Create a text completion.",
            request_type=CompletionRequest,
            response_type=TextCompletion,
            streams=True,
        )
    ]
