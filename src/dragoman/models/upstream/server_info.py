"""What an upstream server says about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.engines.remote.settings import TokenProtocol
from dragoman.types import Json, Sampling

ServerKind: TypeAlias = Literal["llama-server", "vllm", "sglang", "dragoman", "openai"]
# tokens: ids in and ids out. text: `/v1/completions`. chat: `/v1/chat/completions`.
ApiKind: TypeAlias = Literal["tokens", "text", "chat"]


SUFFIX = re.compile(r"\.gguf$", re.IGNORECASE)


class ModelRow(Struct, frozen=True):
    """A model in `/v1/models`."""

    id: str
    fields: dict[str, Json] = {}
    others: tuple[str, ...] = ()  # models of the same server
    adapters: tuple[str, ...] = ()  # LoRA adapters of this model


class ServerInfo(Struct, frozen=True, kw_only=True):
    """What was found at an address; None and empty values are unknown."""

    kind: ServerKind
    name: str  # as its users know it: llama-server, vLLM, SGLang, Ollama, LM Studio…
    model: str  # the name that requests use
    version: str = ""  # as the server says it
    other_models: tuple[str, ...] = ()  # further models that it serves
    apis: tuple[ApiKind, ...] = ()  # supported ones, the best first
    protocol: TokenProtocol | None = None  # of ids in and ids out
    context: int | None = None
    trained_context: int | None = None
    slots: int | None = None  # choices that run at once
    vocabulary_size: int | None = None
    template: str | None = None
    tokenizer_places: tuple[str, ...] = ()  # paths and names on Hugging Face, as the server says
    tokenizer_path: str = ""  # the path that sends the tokenizer; "" is none
    tokenize_path: str = ""  # the path that turns text into ids; "" is none
    adapters: Mapping[str, int] = {}  # LoRA adapters: name -> number
    modalities: tuple[str, ...] = ("text",)
    grammar_backend: str = ""  # as the server says it
    deterministic_seeds: bool = True
    sampling_fields: tuple[str, ...] = ()  # honoured by its engine, if it says so
    max_logprobs: int | None = None
    default_sampling: Sampling | None = None  # of requests that set nothing
    parameters: str | None = None  # a label like 135M
    quantization: str | None = None
    limitations: tuple[str, ...] = ()  # of this server, in sentences for people


def get_text(fields: Mapping[str, Json], *names: str) -> str:
    """Return the first of these fields that is text and not empty, else ""."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
    return ""


def get_count(fields: Mapping[str, Json], *names: str) -> int | None:
    """Return the first of these fields that is a positive whole number."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def get_object(fields: Mapping[str, Json], name: str) -> dict[str, Json]:
    """Return a field that is a JSON object, else an empty one."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def shorten_name(name: str) -> str:
    """Return the name of a model; of a path, as llama-server and vLLM may use one, its end."""
    is_path = name.startswith(("/", ".", "~")) or "\\" in name or bool(SUFFIX.search(name))
    if not is_path:
        return name
    return SUFFIX.sub("", PurePosixPath(name.replace("\\", "/")).name) or name
