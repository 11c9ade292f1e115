"""What another Dragoman says about itself: `/v1/models`, `/tokenizer_info`, `/tokenizer`.

It sends its tokenizer, so nothing has to be known about its model here. An older one, or a model
there that has no token ids, is used as any OpenAI-compatible server.
"""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from dragoman.models.upstream import openai_compatible
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import (
    ModelRow,
    ServerInfo,
    get_count,
    get_object,
    get_text,
)
from dragoman.types import Json, Sampling

NAME = "Dragoman"
TOKENIZER = "/tokenizer"


def read_info(client: ProbeClient, row: ModelRow) -> ServerInfo:
    version = get_text(get_object(client.get("/openapi.json").fields, "info"), "version")
    query = "?" + urlencode({"model": row.id})
    tokenizer = client.get(f"/tokenizer_info{query}").fields  # loads the model
    card = client.get(f"/v1/models/{row.id}").fields
    fields = list_names(card.get("sampling_fields"))
    if not tokenizer or not fields:
        return openai_compatible.read_info(client, row)
    return ServerInfo(
        kind="dragoman",
        name=NAME,
        model=row.id,
        version=version,
        other_models=row.others,
        apis=("tokens", "text", "chat"),
        protocol="dragoman",
        context=get_count(card, "max_model_len"),
        trained_context=get_count(card, "trained_context_length"),
        slots=get_count(card, "slots"),
        vocabulary_size=get_count(tokenizer, "vocab_size"),
        template=get_text(tokenizer, "chat_template") or None,
        tokenizer_path=f"{TOKENIZER}{query}",
        tokenize_path="/tokenize",
        adapters={name: number for number, name in enumerate(list_names(card.get("lora")))},
        sampling_fields=fields,
        max_logprobs=read_number(card.get("max_logprobs")),
        default_sampling=read_sampling(card.get("default_sampling")),
        parameters=get_text(card, "parameters") or None,
        quantization=get_text(card, "quantization") or None,
    )


def list_names(value: Json) -> tuple[str, ...]:
    return tuple(name for name in value if isinstance(name, str)) if isinstance(value, list) else ()


def read_number(value: Json) -> int | None:
    """Return a number, which may be negative: -1 is no logprobs at all."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_sampling(value: Json) -> Sampling | None:
    """Return the values that requests have there by default."""
    try:
        return msgspec.convert(value, Sampling)
    except msgspec.ValidationError:
        return None
