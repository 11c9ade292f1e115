"""What llama-server says about itself: `/props`, `/v1/models`, `/lora-adapters`.

In router mode (no model given on its command line) the server loads models on demand, and `/props`
takes the name of the model. The context of `/props` is that of one slot.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import urlencode

from dragoman.errors import Unavailable
from dragoman.models.upstream.probe_client import RETRY_AFTER, ProbeClient
from dragoman.models.upstream.server_info import (
    ModelRow,
    ServerInfo,
    get_count,
    get_object,
    get_text,
)
from dragoman.types import Json

NAME = "llama-server"
MODALITIES = {"vision": "image", "audio": "audio"}
SIZE_UNITS = ((10**9, "B"), (10**6, "M"))


def read_info(client: ProbeClient, row: ModelRow) -> ServerInfo:
    query = "?" + urlencode({"model": row.id}) if row.others else ""
    props = client.get(f"/props{query}")
    if props.status == 503:
        raise Unavailable("The upstream server is loading its model.", retry_after=RETRY_AFTER)
    fields, meta = props.fields, get_object(row.fields, "meta")
    settings = get_object(fields, "default_generation_settings")
    listed = client.get(f"/lora-adapters{query}")
    path = get_text(fields, "model_path")
    modalities = get_object(fields, "modalities")
    return ServerInfo(
        kind="llama-server",
        name=NAME,
        model=row.id,
        version=get_text(fields, "build_info"),
        other_models=row.others,
        apis=("tokens", "text", "chat"),
        protocol="llama-server",
        context=get_count(settings, "n_ctx") or get_count(meta, "n_ctx"),
        trained_context=get_count(meta, "n_ctx_train"),
        slots=get_count(fields, "total_slots"),
        vocabulary_size=get_count(meta, "n_vocab"),
        template=get_text(fields, "chat_template") or None,
        tokenizer_places=(path,) if path else (),
        tokenize_path="/tokenize",
        adapters=read_adapters(listed.body if listed.is_ok else []),
        modalities=(
            "text",
            *(ours for theirs, ours in MODALITIES.items() if modalities.get(theirs)),
        ),
        parameters=format_parameters(get_count(meta, "n_params")),
        quantization=get_text(fields, "model_ftype") or None,
    )


def read_adapters(rows: Json) -> dict[str, int]:
    """Return the numbers of LoRA adapters by name: the name of the file, without its suffix."""
    adapters: dict[str, int] = {}
    for row in rows if isinstance(rows, list) else ():
        number, path = (row.get("id"), row.get("path")) if isinstance(row, dict) else (None, None)
        if isinstance(number, int) and isinstance(path, str):
            stem = PurePosixPath(path.replace("\\", "/")).stem
            adapters[stem if stem not in adapters else f"{stem}-{number}"] = number
    return adapters


def format_parameters(count: int | None) -> str | None:
    """Return a label such as 135M or 7.2B."""
    for size, unit in SIZE_UNITS:
        if count is not None and count >= size:
            number = count / size
            return f"{number:.0f}{unit}" if number >= 100 else f"{number:.3g}{unit}"
    return None
