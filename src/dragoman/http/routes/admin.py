"""Routes for administrators: load and unload models, and LoRA adapters."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Handler, Route, RouteGroup
from dragoman.http.routes.models import make_model_card
from dragoman.http.routes.shared.context import RouteContext
from dragoman.protocols.models import DIALECT, ModelCard, ModelName, encode_model
from dragoman.protocols.models.decode import (
    AdapterName,
    AdapterPath,
    decode_adapter_name,
    decode_adapter_path,
)


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
        *make_adapter_routes(context),
    ]


def make_adapter_routes(context: RouteContext) -> list[Route]:
    services = context.runtime.services
    registry = services.models

    async def send_card(request: RequestContext, name: str) -> None:
        card = make_model_card(registry.get(name, request.owner), services)
        await request.send_response(200, encode_model(card))

    async def load(request: RequestContext) -> None:
        body = await context.reader.read_and_decode(request, decode_adapter_path)
        name = request.record.requested_model = body.model or registry.default_name
        await registry.load_adapter(name, body.lora_name, body.lora_path, owner=request.owner)
        await send_card(request, name)

    async def unload(request: RequestContext) -> None:
        body = await context.reader.read_and_decode(request, decode_adapter_name)
        name = request.record.requested_model = body.model or registry.default_name
        await registry.unload_adapter(name, body.lora_name, owner=request.owner)
        await send_card(request, name)

    group = RouteGroup("/admin/adapters", DIALECT)
    return [
        group.make(
            "POST",
            "/load",
            load,
            "Load a LoRA adapter from a directory of the server.",
            access="admin",
            request_type=AdapterPath,
            response_type=ModelCard,
        ),
        group.make(
            "POST",
            "/unload",
            unload,
            "Unload a LoRA adapter.",
            access="admin",
            request_type=AdapterName,
            response_type=ModelCard,
        ),
    ]
