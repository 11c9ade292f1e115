"""The list of models, in the shape each client expects."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import UNSET, Struct, UnsetType

from dragoman.protocols import openai


class ModelCard(Struct):
    """A model and what it can do; what is not known before it is loaded is left out."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "dragoman"
    status: str = "unloaded"
    context_length: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    architecture: str | UnsetType = UNSET
    quantization: str | UnsetType = UNSET
    parameters: str | UnsetType = UNSET
    size: int | UnsetType = UNSET
    modalities: list[str] | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    lora: list[str] | UnsetType = UNSET
    aliases: list[str] | UnsetType = UNSET
    error: str | UnsetType = UNSET  # why it cannot be loaded


class ModelName(Struct):
    model: openai.Name


class ModelList(Struct):
    object: str
    data: list[ModelCard]


class MessagesModel(Struct):
    """A model as clients of the Messages dialect list it."""

    id: str
    created_at: str
    display_name: str
    type: str = "model"


class MessagesModels(Struct):
    data: list[MessagesModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def whole(cards: list[ModelCard], messages: bool) -> bytes:
    """All models; `messages` chooses the Messages dialect's shape."""
    if not messages:
        return openai.encode(ModelList("list", cards))
    models = [_messages_model(card) for card in cards]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return openai.encode(MessagesModels(models, first, last))


def one(card: ModelCard, messages: bool) -> bytes:
    return openai.encode(_messages_model(card) if messages else card)


def _messages_model(card: ModelCard) -> MessagesModel:
    made = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return MessagesModel(card.id, made, card.id)
