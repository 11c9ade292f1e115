"""Finds out which server runs at an address, and what it serves.

Almost all servers list their models at `/v1/models`, and three of them say there who they are
(`owned_by`); one without a list can be used if its model is named. The rest is asked at the paths
that only one kind of server has. Nothing is generated here, and no request can change or stop a
server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from dragoman.engines.remote.identity import MISSING_STATUSES
from dragoman.errors import ModelBroken, ModelNotFound, Unavailable
from dragoman.models.upstream import dragoman, llama_server, openai_compatible, sglang, vllm
from dragoman.models.upstream.probe_client import RETRY_AFTER, ProbeAnswer, ProbeClient
from dragoman.models.upstream.server_info import ModelRow, ServerInfo, get_text, shorten_name
from dragoman.models.upstream.versions import list_ignored_fields
from dragoman.options import suggest
from dragoman.types import Json

log = logging.getLogger("dragoman.upstream")

READERS: dict[str, Callable[[ProbeClient, ModelRow], ServerInfo]] = {
    "llamacpp": llama_server.read_info,
    "vllm": vllm.read_info,
    "sglang": sglang.read_info,
    "dragoman": dragoman.read_info,
}


def identify(client: ProbeClient, model: str = "") -> ServerInfo:
    """Return what is known about a server and one of its models; "" is the first one.

    Raises `Unavailable` while the server cannot be reached or loads its model, and `ModelBroken` or
    `ModelNotFound` if it is not a server that can be used.
    """
    answer = client.get("/v1/models")
    is_missing = bool(model) and answer.status in MISSING_STATUSES
    row = ModelRow(model) if is_missing else choose_row(read_rows(answer), model)
    owner = find_owner(client, answer, row)
    info = READERS.get(owner, openai_compatible.read_info)(client, row)
    if info.protocol == "llama-server" and "token_ids" in list_ignored_fields(info):
        apis = tuple(api for api in info.apis if api != "tokens")
        return replace(info, apis=apis, protocol=None)
    return info


def list_models(client: ProbeClient) -> tuple[str, ...]:
    """Return the names of a server's models that generate, without its LoRA adapters."""
    rows = read_rows(client.get("/v1/models"))
    names = [row.id for row in rows if not get_text(row.fields, "parent")]
    if len(names) > 1 and get_text(rows[0].fields, "owned_by").lower() not in READERS:
        names = openai_compatible.drop_embedding_models(client, names) or names
    return tuple(names)


def read_rows(answer: ProbeAnswer) -> list[ModelRow]:
    """Return the entries of `/v1/models`, or raise an error that says what to do."""
    if answer.status in (401, 403):
        raise ModelBroken(
            "The upstream server rejects the API key, or needs one: put it into a file and name it "
            "with --upstream-key-file."
        )
    if answer.status in (429, 502, 503, 504):  # a proxy in front of it may be up first
        raise Unavailable("The upstream server is not ready yet.", retry_after=RETRY_AFTER)
    if 300 <= answer.status < 400:
        raise ModelBroken(
            "The upstream server redirects to another address: give that one to --upstream."
        )
    data = answer.fields.get("data")
    if answer.is_ok and isinstance(answer.body, list) and any(map(get_id, answer.body)):
        data = answer.body  # some hosted APIs send the list alone
    if not isinstance(data, list):
        raise ModelBroken(
            f"There is no model server at this address: /v1/models answers {answer.status}. "
            "--upstream takes the address of llama-server, vLLM, SGLang or another "
            "OpenAI-compatible server, such as http://127.0.0.1:8080."
        )
    rows = [ModelRow(get_id(entry), entry) for entry in data if get_id(entry)]
    if not rows:
        raise Unavailable("The upstream server has no model yet.", retry_after=RETRY_AFTER)
    names = tuple(row.id for row in rows)
    adapters = {row.id: get_text(row.fields, "parent") for row in rows}
    return [
        ModelRow(
            row.id,
            row.fields,
            others=tuple(name for name in names if name != row.id and not adapters[name]),
            adapters=tuple(name for name in names if adapters[name] == row.id),
        )
        for row in rows
    ]


def get_id(entry: Json) -> str:
    """Return the name of an entry of `/v1/models`; "" if it is none."""
    return get_text(entry, "id") if isinstance(entry, dict) else ""


def choose_row(rows: list[ModelRow], model: str) -> ModelRow:
    """Return the entry of a model, by its name or one of its aliases."""
    if not model:
        return next((row for row in rows if not get_text(row.fields, "parent")), rows[0])
    for row in rows:
        aliases = row.fields.get("aliases")
        if model == row.id or (isinstance(aliases, list) and model in aliases):
            return row
    names = [shorten_name(row.id) for row in rows]
    raise ModelNotFound(
        f"The upstream server has no model `{model}`.{suggest(model, names)} "
        f"It has: {', '.join(names)}."
    )


def find_owner(client: ProbeClient, answer: ProbeAnswer, row: ModelRow) -> str:
    """Return who serves a model, in the word of `owned_by`."""
    owner = get_text(row.fields, "owned_by").lower()
    if owner in READERS:
        return owner
    props = client.get("/props")  # a server may be behind a proxy that renames its models
    if "default_generation_settings" in props.fields:
        return "llamacpp"
    for path in (sglang.MODEL_INFO, sglang.OLD_MODEL_INFO):
        if "tokenizer_path" in client.get(path).fields:
            return "sglang"
    return owner
