"""Routes of text completions."""

from __future__ import annotations

from dragoman.http.router import Route
from dragoman.http.routes.context import RouteContext
from dragoman.http.routes.generation import make_generation_handler
from dragoman.protocols.completions import DIALECT, CompletionRequest, TextCompletion


def make_routes(context: RouteContext) -> list[Route]:
    return [
        Route(
            path="/v1/completions",
            method="POST",
            handler=make_generation_handler(context, DIALECT),
            summary="Create a text completion.",
            dialects=(DIALECT,),
            request_type=CompletionRequest,
            response_type=TextCompletion,
            streams=True,
        )
    ]
