"""What vLLM says about itself: `/version`, `/v1/models`, `/tokenizer_info`.

Token ids go through `/inference/v1/generate` where the server has it, else through
`/v1/completions`, whose field `return_token_ids` older versions ignore.
"""

from __future__ import annotations

from dragoman.engines.remote.settings import TokenProtocol
from dragoman.models.upstream.probe_client import ProbeClient
from dragoman.models.upstream.server_info import (
    ApiKind,
    ModelRow,
    ServerInfo,
    get_count,
    get_text,
)
from dragoman.models.upstream.versions import can_return_ids

NAME = "vLLM"
GENERATE = "/inference/v1/generate"


def read_info(client: ProbeClient, row: ModelRow) -> ServerInfo:
    version = get_text(client.get("/version").fields, "version")
    tokenizer = client.get("/tokenizer_info").fields
    generate = client.post(GENERATE, {})
    tokenize = client.post("/tokenize", {"model": row.id, "prompt": "x"})
    protocol: TokenProtocol | None = "vllm-generate" if generate.has_route else None
    if protocol is None and can_return_ids(version):
        protocol = "vllm-completions"
    root = get_text(row.fields, "root")
    apis: tuple[ApiKind, ...] = ("text", "chat")
    if protocol is not None:
        apis = ("tokens", *apis)
    return ServerInfo(
        kind="vllm",
        name=NAME,
        model=row.id,
        version=version,
        other_models=row.others,
        apis=apis,
        protocol=protocol,
        context=get_count(row.fields, "max_model_len")
        or get_count(tokenize.fields, "max_model_len"),
        template=get_text(tokenizer, "chat_template") or None,
        tokenizer_places=tuple(dict.fromkeys(filter(None, (root, row.id)))),
        tokenize_path="/tokenize" if tokenize.is_ok else "",
        adapters={name: number for number, name in enumerate(row.adapters)},
    )
