"""Chat completions that are kept: how they are shown, listed, changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.openai import Metadata, encode

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class CompletionUpdate(Struct):
    """What is noted of a completion, in place of what was noted before."""

    metadata: Metadata | None


class _StoredFields(Struct):
    """What is kept of a request beside its answer."""

    messages: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"[]"))
    metadata: dict[str, str] | None = None


def decode_stored_fields(body: bytes) -> tuple[bytes, dict[str, str]]:
    """The messages and the metadata of a request that has been decoded before."""
    said = msgspec.json.decode(body, type=_StoredFields)
    return bytes(said.messages), said.metadata or {}


def set_metadata(completion: bytes, metadata: Mapping[str, str]) -> bytes:
    """A completion with what its client notes of it."""
    return encode(_decode(completion) | {"metadata": dict(metadata)})


def get_id(completion: bytes) -> str:
    return str(_decode(completion)["id"])


def decode_update(body: bytes, strict: bool = False) -> dict[str, str]:
    return decode_body(body, CompletionUpdate, strict).metadata or {}


def matches(completion: bytes, model: str | None, metadata: Mapping[str, str]) -> bool:
    """Whether a completion is of a model, if one is named, and has these notes."""
    kept = _decode(completion)
    named = model is None or kept["model"] == model
    return named and all(kept["metadata"].get(key) == value for key, value in metadata.items())


def encode_list(bodies: Sequence[bytes], more: bool) -> bytes:
    data = [_decode(body) for body in bodies]
    return _page(data, more)


def encode_messages(name: str, said: bytes, after: str | None, limit: int, newest: bool) -> bytes:
    """A page of what a completion was asked; every message has an id, made of its place."""
    every = [_message(one, f"{name}-{at}") for at, one in enumerate(msgspec.json.decode(said))]
    if newest:
        every.reverse()
    if after is not None:
        at = next((at for at, one in enumerate(every) if one["id"] == after), None)
        if at is None:
            raise BadRequest("There is no such message in this completion.", param="after")
        every = every[at + 1 :]
    return _page(every[:limit], len(every) > limit)


def _message(said: dict[str, Any], name: str) -> dict[str, Any]:
    content = said.get("content")
    parts = content if isinstance(content, list) else None
    if parts is not None:
        content = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
    whole = {"refusal": None} | said
    return whole | {"id": name, "content": content, "content_parts": parts}


def encode_deletion(name: str) -> bytes:
    return encode({"id": name, "object": "chat.completion.deleted", "deleted": True})


def _page(data: list[dict[str, Any]], more: bool) -> bytes:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    page = {"object": "list", "data": data, "first_id": first, "last_id": last}
    return encode(page | {"has_more": more})
