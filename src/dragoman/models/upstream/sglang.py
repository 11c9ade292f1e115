"""What SGLang says about itself: `/model_info`, `/server_info`, `/v1/models`.

Newer versions have renamed the first two; older ones answer at `/get_model_info` and
`/get_server_info`. `/server_info` has the arguments of the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import (
    ModelRow,
    ServerInfo,
    get_count,
    get_object,
    get_text,
)
from dragoman.types import Json

NAME = "SGLang"
MODEL_INFO, OLD_MODEL_INFO = "/model_info", "/get_model_info"
SERVER_INFO, OLD_SERVER_INFO = "/server_info", "/get_server_info"


def read_info(client: ProbeClient, row: ModelRow) -> ServerInfo:
    model = client.get(MODEL_INFO).fields or client.get(OLD_MODEL_INFO).fields
    server = client.get(SERVER_INFO).fields or client.get(OLD_SERVER_INFO).fields
    arguments = get_object(server, "server_args") | server
    tokenize = client.post("/tokenize", {"model": row.id, "prompt": "x"})
    template = get_text(arguments, "chat_template")
    places = (
        get_text(model, "tokenizer_path"),
        get_text(model, "model_path"),
        get_text(arguments, "tokenizer_path", "model_path"),
    )
    return ServerInfo(
        kind="sglang",
        name=NAME,
        model=row.id,
        version=get_text(server, "version"),
        other_models=row.others,
        apis=("tokens", "text", "chat"),
        protocol="sglang",
        context=get_count(row.fields, "max_model_len")
        or get_count(arguments, "context_length", "max_model_len")
        or get_count(tokenize.fields, "max_model_len"),
        slots=get_count(arguments, "max_running_requests"),
        vocabulary_size=get_count(model, "vocab_size"),
        template=template if "{%" in template or "{{" in template else None,  # else its name
        tokenizer_places=tuple(dict.fromkeys(filter(None, places))),
        tokenize_path="/tokenize" if tokenize.is_ok else "",
        adapters=read_adapters(arguments),
        modalities=("text", "image") if model.get("has_image_understanding") is True else ("text",),
        grammar_backend=get_text(arguments, "grammar_backend"),
        deterministic_seeds=arguments.get("enable_deterministic_inference") is True,
    )


def read_adapters(arguments: Mapping[str, Json]) -> dict[str, int]:
    """Return the LoRA adapters that the server has loaded: a mapping, or a list of names."""
    loaded = arguments.get("lora_paths") or ()
    names: list[str] = []
    for entry in loaded:
        name = entry.get("lora_name") if isinstance(entry, dict) else entry
        if isinstance(name, str):
            names.append(name.partition("=")[0])
    return {name: number for number, name in enumerate(names)}
