"""Routes that complete text: after a prompt, or between a prefix and a suffix."""

from __future__ import annotations

from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.http.routes.shared.generation import make_generation_handler
from dragoman.protocols import completions, infill


def make_routes(context: RouteContext) -> list[Route]:
    return [
        RouteGroup("/v1/completions", completions.DIALECT).make(
            "POST",
            "",
            make_generation_handler(context, completions.DIALECT),
            "Create a text completion.",
            request_type=completions.CompletionRequest,
            response_type=completions.TextCompletion,
            streams=True,
        ),
        RouteGroup("/infill", infill.DIALECT).make(
            "POST",
            "",
            make_generation_handler(context, infill.DIALECT),
            "Fill in text between a prefix and a suffix.",
            request_type=infill.InfillRequest,
            response_type=infill.InfillResponse,
            streams=True,
        ),
    ]
