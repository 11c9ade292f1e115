"""Routes that list models.

OpenAI's and Anthropic's lists have the same path. The wire API of a request decides which of them
is sent.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.models.registry import ModelEntry
from dragoman.pipeline.services import Services
from dragoman.protocols import messages
from dragoman.protocols.messages import model_list
from dragoman.protocols.models import (
    DIALECT,
    ModelCard,
    ModelList,
    UpstreamCard,
    encode_model,
    encode_model_list,
)

T = TypeVar("T")


def make_routes(context: RouteContext) -> list[Route]:
    services = context.runtime.services
    registry = services.models

    async def list_models(request: RequestContext) -> None:
        cards = [make_model_card(entry, services) for entry in registry.list_models(request.owner)]
        if request.dialect is messages.DIALECT:
            body = model_list.encode_model_page(cards, request.query)
        else:
            body = encode_model_list(cards)
        await request.send_response(200, body)

    async def get_model(request: RequestContext) -> None:
        card = make_model_card(registry.get(request.params["model"], request.owner), services)
        encode = model_list.encode_model if request.dialect is messages.DIALECT else encode_model
        await request.send_response(200, encode(card))

    group = RouteGroup("/v1/models", DIALECT, messages.DIALECT)
    return [
        group.make("GET", "", list_models, "List models.", response_type=ModelList),
        group.make("GET", "/{model...}", get_model, "Get a model.", response_type=ModelCard),
    ]


def make_model_card(entry: ModelEntry, services: Services) -> ModelCard:
    """Return a model as it is listed; before it is loaded, some fields are not known."""
    info = entry.info
    card = ModelCard(
        id=entry.id,
        created=info.created,
        status=entry.state,
        context_length=_unset_if_none(info.context),
        max_model_len=_unset_if_none(info.context),
        trained_context_length=_unset_if_none(info.trained_context),
        architecture=_unset_if_none(info.architecture),
        quantization=_unset_if_none(info.quantization),
        parameters=_unset_if_none(info.parameters),
        size=info.size,
        memory=_unset_if_none(info.memory),
        modalities=list(info.modalities),
        capabilities=list(info.capabilities),
        lora=list(info.lora),
        aliases=list(entry.aliases),
        error=_unset_if_none(entry.error),
        expires_at=_unset_if_none(entry.expires_at),
    )
    if info.upstream is not None:
        card.upstream = UpstreamCard(**msgspec.to_builtins(info.upstream))
    if entry.model is not None:
        gate = services.admission.get_gate(entry.model)
        card.slots, card.slots_busy = _unset_if_none(gate.slots), gate.busy_slots
        card.requests_waiting = gate.waiting
        capabilities = entry.model.capabilities
        card.sampling_fields = sorted(capabilities.sampling)
        card.max_logprobs = capabilities.logprobs
        defaults = entry.model.preset.get_sampling(entry.model.defaults)
        card.default_sampling = msgspec.to_builtins(defaults)
        card.sampling_source = entry.model.defaults_source or UNSET
    return card


def _unset_if_none(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value
