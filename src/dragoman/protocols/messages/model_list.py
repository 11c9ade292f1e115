"""The list of models as clients of this dialect know it: a page at a time, from either end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct, UnsetType

from dragoman.errors import BadRequest
from dragoman.protocols.models import ModelCard
from dragoman.protocols.shared.openai import encode

PAGE, MOST = 20, 1000


class MessagesModel(Struct):
    """A model."""

    id: str
    created_at: str
    display_name: str
    max_input_tokens: int | None
    max_tokens: int | None
    type: str = "model"
    lifecycle: str = "active"
    capabilities: None = None
    deprecated_at: None = None
    retires_at: None = None
    line: None = None


class MessagesModelList(Struct):
    data: list[MessagesModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


def encode_model(card: ModelCard) -> bytes:
    return encode(_model(card))


def encode_model_page(cards: list[ModelCard], query: Mapping[str, str]) -> bytes:
    """Those behind `after_id`, or the last of those before `before_id`."""
    size = _size(query.get("limit"))
    before, after = query.get("before_id"), query.get("after_id")
    if before is not None:
        cards = cards[: _place(cards, before, "before_id")]
    if after is not None:
        cards = cards[_place(cards, after, "after_id") + 1 :]
    backwards = before is not None and after is None
    shown = [_model(card) for card in (cards[-size:] if backwards else cards[:size])]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return encode(MessagesModelList(shown, first, last, len(cards) > size))


def _size(said: str | None) -> int:
    if said is None:
        return PAGE
    if not (said.isascii() and said.isdigit() and 1 <= int(said[:5]) <= MOST):
        raise BadRequest(f"`limit` must be a number from 1 to {MOST}.", param="limit")
    return int(said)


def _place(cards: list[ModelCard], name: str, param: str) -> int:
    place = next((at for at, card in enumerate(cards) if card.id == name), None)
    if place is None:
        raise BadRequest(f"`{param}` is not the id of a model here.", param=param)
    return place


def _model(card: ModelCard) -> MessagesModel:
    made = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    context = None if isinstance(card.context_length, UnsetType) else card.context_length
    return MessagesModel(card.id, made, card.id, context, context)
