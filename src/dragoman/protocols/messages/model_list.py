"""The model list of the Messages API, which is paged in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct, UnsetType

from dragoman.errors import BadRequest
from dragoman.protocols.models import ModelCard
from dragoman.protocols.shared.openai import encode

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 20, 1000


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
    return encode(_make_model(card))


def encode_model_page(cards: list[ModelCard], query: Mapping[str, str]) -> bytes:
    """Encode the models after `after_id`, or the last ones before `before_id`."""
    size = _decode_page_size(query.get("limit"))
    before, after = query.get("before_id"), query.get("after_id")
    if before is not None:
        cards = cards[: _find_index(cards, before, "before_id")]
    if after is not None:
        cards = cards[_find_index(cards, after, "after_id") + 1 :]
    backwards = before is not None and after is None
    page = [_make_model(card) for card in (cards[-size:] if backwards else cards[:size])]
    first, last = (page[0].id, page[-1].id) if page else (None, None)
    return encode(MessagesModelList(page, first, last, len(cards) > size))


def _decode_page_size(limit: str | None) -> int:
    if limit is None:
        return DEFAULT_PAGE_SIZE
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:5]) <= MAX_PAGE_SIZE):
        raise BadRequest(f"`limit` must be a number from 1 to {MAX_PAGE_SIZE}.", param="limit")
    return int(limit)


def _find_index(cards: list[ModelCard], name: str, param: str) -> int:
    index = next((i for i, card in enumerate(cards) if card.id == name), None)
    if index is None:
        raise BadRequest(f"`{param}` is not the id of a model.", param=param)
    return index


def _make_model(card: ModelCard) -> MessagesModel:
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    context = None if isinstance(card.context_length, UnsetType) else card.context_length
    return MessagesModel(card.id, created, card.id, context, context)
