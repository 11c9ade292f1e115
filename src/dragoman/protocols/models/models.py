"""The list of models, as OpenAI has it and with what else is known of them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from dragoman.protocols.shared import openai


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


def encode_model_list(cards: list[ModelCard]) -> bytes:
    return openai.encode(ModelList("list", cards))


def encode_model(card: ModelCard) -> bytes:
    return openai.encode(card)
