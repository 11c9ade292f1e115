"""What any other OpenAI-compatible server can do: Ollama, LM Studio, TabbyAPI, a hosted API…

Which APIs it has is asked with a request without a prompt, which generates at most one token.
Ollama puts the prompts of `/v1/completions` into the model's chat template, so it has no text API.
The context of a model is what it is loaded with, which is often less than it was trained for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dragoman.errors import ModelBroken
from dragoman.models.upstream.probe_client import ProbeAnswer, ProbeClient
from dragoman.models.upstream.server_info import (
    ApiKind,
    ModelRow,
    ServerInfo,
    get_count,
    get_object,
    get_text,
)
from dragoman.types import Json

NAME = "OpenAI-compatible server"
LM_STUDIO_MODELS = "/api/v0/models"
NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
OLLAMA_SHORTENS = (
    "Ollama shortens conversations that exceed its context without saying so; "
    "OLLAMA_CONTEXT_LENGTH sets it."
)
PATHS: dict[ApiKind, str] = {"text": "/v1/completions", "chat": "/v1/chat/completions"}


class ServerDetails(Struct, frozen=True, kw_only=True):
    """What a known server says at paths of its own."""

    name: str = NAME
    version: str = ""
    context: int | None = None
    trained_context: int | None = None
    quantization: str | None = None
    parameters: str | None = None
    template: str | None = None
    apis: tuple[ApiKind, ...] = ("text", "chat")  # candidates: each is tested
    limitations: tuple[str, ...] = ()


def read_info(client: ProbeClient, row: ModelRow) -> ServerInfo:
    details = read_ollama(client, row) or read_lm_studio(client, row) or ServerDetails()
    found = [api for api in details.apis if has_api(client, api, row.id)]
    if not found:
        raise ModelBroken(
            "The upstream server has neither /v1/completions nor /v1/chat/completions."
        )
    is_ours = get_text(row.fields, "owned_by") == "dragoman"
    return ServerInfo(
        kind="openai",
        name="Dragoman" if is_ours else details.name,
        model=row.id,
        version="" if is_ours else details.version,  # ours tells that of Ollama's API
        other_models=row.others,
        apis=tuple(found),
        context=details.context
        or get_count(row.fields, "max_model_len", "context_length", "context_window"),
        trained_context=details.trained_context,
        limitations=details.limitations,
        template=details.template,
        quantization=details.quantization,
        parameters=details.parameters,
    )


def has_api(client: ProbeClient, api: ApiKind, model: str) -> bool:
    answer = client.post(PATHS[api], {"model": model, "max_tokens": 1})
    return answer.has_route


def drop_embedding_models(client: ProbeClient, names: Sequence[str]) -> list[str]:
    """Return the models that generate text: Ollama and LM Studio list others, too."""
    if read_ollama_version(client):
        return [name for name in names if not is_embedding_model(show_model(client, name))]
    rows = get_rows(client.get(LM_STUDIO_MODELS), "data")
    types = {row.get("id"): row.get("type") for row in rows}
    return [name for name in names if types.get(name) != "embeddings"]


def is_embedding_model(shown: Mapping[str, Json]) -> bool:
    capabilities = shown.get("capabilities")
    return isinstance(capabilities, list) and "completion" not in capabilities


def read_ollama_version(client: ProbeClient) -> str:
    return get_text(client.get("/api/version").fields, "version")


def show_model(client: ProbeClient, name: str) -> dict[str, Json]:
    """Return what Ollama says about a model."""
    return client.post("/api/show", {"model": name}).fields


def read_ollama(client: ProbeClient, row: ModelRow) -> ServerDetails | None:
    version = read_ollama_version(client)
    if not version:
        return None
    shown = show_model(client, row.id)
    details, facts = get_object(shown, "details"), get_object(shown, "model_info")
    architecture = get_text(facts, "general.architecture")
    return ServerDetails(
        name="Ollama",
        version=version,
        context=find_ollama_context(client, row.id, get_text(shown, "parameters")),
        trained_context=get_count(facts, f"{architecture}.context_length"),
        quantization=get_text(details, "quantization_level") or None,
        parameters=get_text(details, "parameter_size") or None,
        apis=("chat",),
        limitations=(OLLAMA_SHORTENS,),
    )


def find_ollama_context(client: ProbeClient, model: str, parameters: str) -> int | None:
    """Return the context that a model is loaded with, or that its parameters set."""
    for entry in get_rows(client.get("/api/ps"), "models"):
        if model in (entry.get("model"), entry.get("name")):
            return get_count(entry, "context_length")
    match = NUM_CTX.search(parameters)
    return int(match[1]) if match else None


def read_lm_studio(client: ProbeClient, row: ModelRow) -> ServerDetails | None:
    rows = get_rows(client.get(LM_STUDIO_MODELS), "data")
    if not rows:
        return None
    fields = next((entry for entry in rows if entry.get("id") == row.id), {})
    return ServerDetails(
        name="LM Studio",
        context=get_count(fields, "loaded_context_length"),
        trained_context=get_count(fields, "max_context_length"),
        quantization=get_text(fields, "quantization") or None,
    )


def get_rows(answer: ProbeAnswer, name: str) -> list[dict[str, Json]]:
    """Return a field that is a list of JSON objects, else an empty one."""
    rows = answer.fields.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
