"""Encode models as OpenAI lists them, with what else is known about them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from dragoman.protocols.shared import openai


class ModelCard(Struct):
    """A model and what it can do; fields that are unknown before it is loaded are absent."""

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
    slots: int | UnsetType = UNSET  # choices that it generates at once; of a loaded model
    slots_busy: int | UnsetType = UNSET
    requests_waiting: int | UnsetType = UNSET
    expires_at: float | UnsetType = UNSET  # when it is unloaded if it stays idle, Unix time


class ModelList(Struct):
    object: str
    data: list[ModelCard]


def encode_model_list(cards: list[ModelCard]) -> bytes:
    return openai.encode(ModelList("list", cards))


def encode_model(card: ModelCard) -> bytes:
    return openai.encode(card)
