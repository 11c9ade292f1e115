"""Routes for administrators: load and unload models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Handler, Route, RouteGroup
from dragoman.http.routes.context import RouteContext
from dragoman.http.routes.models import make_model_card
from dragoman.protocols.models import DIALECT, ModelCard, ModelName, encode_model


def make_routes(context: RouteContext) -> list[Route]:
    services = context.runtime.services
    registry = services.models

    def make_handler(change: Callable[[str], Awaitable[object]]) -> Handler:
        async def handle(request: RequestContext) -> None:
            name = (await context.reader.read_and_decode(request, DIALECT.decode)).model
            await change(name)
            card = make_model_card(registry.get(name), services)
            await request.send_response(200, encode_model(card))

        return handle

    group = RouteGroup("/admin/models", DIALECT)

    def make_route(action: str, change: Callable[[str], Awaitable[object]], summary: str) -> Route:
        return group.make(
            "POST",
            f"/{action}",
            make_handler(change),
            summary,
            access="admin",
            request_type=ModelName,
            response_type=ModelCard,
        )

    return [
        make_route("load", registry.load, "Load a model."),
        make_route("unload", registry.unload, "Unload a model once its requests are finished."),
    ]
