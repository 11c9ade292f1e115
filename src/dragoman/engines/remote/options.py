"""Options of models that another server runs, see `docs/upstream.md`.

They are declared once for the server (`--upstream`) and for the entries of models (`upstream:`).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from dragoman.engines.options import EngineOptions
from dragoman.options import Setting

GROUP = "upstream"
ApiChoice: TypeAlias = Literal["auto", "tokens", "text", "chat"]


class UpstreamOptions(EngineOptions, frozen=True, kw_only=True):
    """Which server runs a model, and how to reach it. None is "not set"."""

    upstream: Annotated[
        str | None,
        Setting(
            help="running server whose model is served: llama-server, vLLM, SGLang or any "
            "OpenAI-compatible one, such as http://127.0.0.1:8080",
            group=GROUP,
            metavar="URL",
            schemes=("http", "https"),
            key="url",
        ),
    ] = None
    upstream_model: Annotated[
        str | None,
        Setting(
            help="name of the model on that server",
            group=GROUP,
            metavar="NAME",
            default="MODEL, else all models of the server",
        ),
    ] = None
    upstream_api: Annotated[
        ApiChoice | None,
        Setting(
            help="API of the server to use: token ids, text (/v1/completions) or chat "
            "(/v1/chat/completions)",
            group=GROUP,
            metavar="API",
            default="auto, the best one that it has",
        ),
    ] = None
    upstream_key_file: Annotated[
        str | None,
        Setting(
            help="file with the API key of that server; read again for each request",
            group=GROUP,
            metavar="PATH",
            default="the environment variable DRAGOMAN_UPSTREAM_KEY",
            is_path=True,
        ),
    ] = None
    upstream_ca: Annotated[
        str | None,
        Setting(
            help="certificate authorities that are trusted for that server",
            group=GROUP,
            metavar="PATH",
            default="those of the system",
            is_path=True,
        ),
    ] = None
    upstream_grammars: Annotated[
        bool | None,
        Setting(
            help="send grammars to that server; a llama-server built without LLAMA_LLGUIDANCE "
            "exits when it receives one",
            group=GROUP,
            default="on if a test grammar works; off for llama.cpp, which is not tested",
        ),
    ] = None
    upstream_timeout: Annotated[
        float | None,
        Setting(
            help="how long that server may send nothing before a request fails",
            group=GROUP,
            unit="seconds",
            minimum=0.1,
            default="60s",
            key="timeout",
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        Setting(
            help="tokenizer and chat template of the model on that server: a directory, a GGUF "
            "file, or owner/repo of Hugging Face",
            group=GROUP,
            metavar="PATH",
            default="what the server names",
        ),
    ] = None


UPSTREAM_FIELDS = tuple(
    name
    for name in UpstreamOptions.__struct_fields__
    if name not in EngineOptions.__struct_fields__
)
# options of engines that apply to models of other servers, too: they lower what the server has
SHARED_FIELDS = ("context", "slots", "shared_cache")
# of the model that `--upstream` names; the others apply to all models of other servers
OWN_FIELDS = ("upstream", "upstream_model", "tokenizer")
