"""Routes that fill in text between a prefix and a suffix."""

from __future__ import annotations

from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.context import RouteContext
from dragoman.http.routes.generation import make_generation_handler
from dragoman.protocols.infill import DIALECT, InfillRequest, InfillResponse


def make_routes(context: RouteContext) -> list[Route]:
    group = RouteGroup("/infill", DIALECT)
    return [
        group.make(
            "POST",
            "",
            make_generation_handler(context, DIALECT),
            "Fill in text between a prefix and a suffix.",
            request_type=InfillRequest,
            response_type=InfillResponse,
            streams=True,
        )
    ]
