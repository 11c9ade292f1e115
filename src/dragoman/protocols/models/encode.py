"""Encode models as OpenAI lists them, with what else is known about them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from dragoman.protocols.shared import openai
from dragoman.types import Json


class UpstreamCard(Struct):
    """The server that runs a model."""

    server: str
    version: str
    model: str  # its name there
    api: str  # tokens, text or chat
    limitations: list[str]  # what does not hold for this model, one sentence each


class ModelCard(Struct):
    """A model and what it can do; fields that are unknown before it is loaded are absent."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "dragoman"
    status: str = "unloaded"
    context_length: int | UnsetType = UNSET
    max_model_len: int | UnsetType = UNSET
    trained_context_length: int | UnsetType = UNSET  # `context_length` is what is served
    architecture: str | UnsetType = UNSET
    quantization: str | UnsetType = UNSET
    parameters: str | UnsetType = UNSET
    size: int | UnsetType = UNSET  # bytes of its files
    memory: int | UnsetType = UNSET  # bytes that it needs when it is loaded, estimated
    modalities: list[str] | UnsetType = UNSET
    capabilities: list[str] | UnsetType = UNSET
    lora: list[str] | UnsetType = UNSET
    aliases: list[str] | UnsetType = UNSET
    error: str | UnsetType = UNSET  # why it cannot be loaded
    slots: int | UnsetType = UNSET  # choices that it generates at once; of a loaded model
    slots_busy: int | UnsetType = UNSET
    requests_waiting: int | UnsetType = UNSET
    sampling_fields: list[str] | UnsetType = UNSET  # that its engine honours; of a loaded model
    max_logprobs: int | UnsetType = UNSET  # alternatives for each token; -1 is no logprobs
    default_sampling: dict[str, Json] | UnsetType = UNSET  # of requests that set nothing
    sampling_source: str | UnsetType = UNSET  # where it comes from, besides the operator
    expires_at: float | UnsetType = UNSET  # when it is unloaded if it stays idle, Unix time
    upstream: UpstreamCard | UnsetType = UNSET  # the server that runs it, if it is another one


class ModelList(Struct):
    object: str
    data: list[ModelCard]


def encode_model_list(cards: list[ModelCard]) -> bytes:
    return openai.encode(ModelList("list", cards))


def encode_model(card: ModelCard) -> bytes:
    return openai.encode(card)
