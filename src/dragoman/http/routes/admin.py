"""Routes for administrators: load and unload models."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Handler, Route, RouteGroup
from dragoman.http.routes.context import RouteContext
from dragoman.http.routes.models import make_model_card
from dragoman.protocols.models import DIALECT, ModelCard, ModelName, encode_model


class ChangeModel(Protocol):
    """Loads or unloads the model with a name."""

    def __call__(self, name: str, *, owner: str) -> Awaitable[object]: ...


def make_routes(context: RouteContext) -> list[Route]:
    services = context.runtime.services
    registry = services.models

    def make_handler(change: ChangeModel) -> Handler:
        async def handle(request: RequestContext) -> None:
            name = (await context.reader.read_and_decode(request, DIALECT.decode)).model
            request.record.requested_model = name
            await change(name, owner=request.owner)
            card = make_model_card(registry.get(name, request.owner), services)
            await request.send_response(200, encode_model(card))

        return handle

    group = RouteGroup("/admin/models", DIALECT)

    def make_route(action: str, change: ChangeModel, summary: str) -> Route:
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
