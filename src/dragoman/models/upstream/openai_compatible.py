"""What any other OpenAI-compatible server can do: Ollama, LM Studio, TabbyAPI, a hosted API…

Which APIs it has is asked with a request without a prompt, which generates at most one token.
Ollama puts the prompts of `/v1/completions` into the model's chat template, so it has no text API.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import ModelBroken
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import (
    ApiKind,
    ModelRow,
    ServerInfo,
    get_count,
    get_object,
    get_text,
)

NAME = "OpenAI-compatible server"
PATHS: dict[ApiKind, str] = {"text": "/v1/completions", "chat": "/v1/chat/completions"}


class ServerDetails(Struct, frozen=True, kw_only=True):
    """What a known server says at paths of its own."""

    name: str = NAME
    version: str = ""
    context: int | None = None
    quantization: str | None = None
    parameters: str | None = None
    template: str | None = None
    apis: tuple[ApiKind, ...] = ("text", "chat")  # that it may have


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
        template=details.template,
        quantization=details.quantization,
        parameters=details.parameters,
    )


def has_api(client: ProbeClient, api: ApiKind, model: str) -> bool:
    answer = client.post(PATHS[api], {"model": model, "max_tokens": 1})
    return answer.has_route


def read_ollama(client: ProbeClient, row: ModelRow) -> ServerDetails | None:
    version = get_text(client.get("/api/version").fields, "version")
    if not version:
        return None
    shown = client.post("/api/show", {"model": row.id}).fields
    details, facts = get_object(shown, "details"), get_object(shown, "model_info")
    architecture = get_text(facts, "general.architecture")
    return ServerDetails(
        name="Ollama",
        version=version,
        context=get_count(facts, f"{architecture}.context_length"),
        quantization=get_text(details, "quantization_level") or None,
        parameters=get_text(details, "parameter_size") or None,
        apis=("chat",),
    )


def read_lm_studio(client: ProbeClient, row: ModelRow) -> ServerDetails | None:
    answer = client.get("/api/v0/models")
    rows = answer.fields.get("data")
    if not answer.has_route or not isinstance(rows, list):
        return None
    found = [entry for entry in rows if isinstance(entry, dict) and entry.get("id") == row.id]
    fields = found[0] if found else {}
    return ServerDetails(
        name="LM Studio",
        context=get_count(fields, "loaded_context_length", "max_context_length"),
        quantization=get_text(fields, "quantization") or None,
    )
