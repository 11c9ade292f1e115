"""Stored chat completions: decode updates; encode them, lists of them and their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.openai import Metadata, encode, encode_page
from dragoman.types import Json

_decode = msgspec.json.Decoder(dict[str, Json]).decode


class CompletionUpdate(Struct):
    """Metadata that replaces a completion's metadata."""

    metadata: Metadata | None


class _StoredFields(Struct):
    """The fields of a request that are stored with its answer."""

    messages: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"[]"))
    metadata: dict[str, str] | None = None


def decode_stored_fields(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the messages and the metadata of a request that was validated before."""
    fields = msgspec.json.decode(body, type=_StoredFields)
    return bytes(fields.messages), fields.metadata or {}


def set_metadata(completion: bytes, metadata: Mapping[str, str]) -> bytes:
    return encode(_decode(completion) | {"metadata": dict(metadata)})


def get_id(completion: bytes) -> str:
    return str(_decode(completion)["id"])


def decode_update(body: bytes, strict: bool = False) -> dict[str, str]:
    return decode_body(body, CompletionUpdate, strict).metadata or {}


def matches(completion: bytes, model: str | None, metadata: Mapping[str, str]) -> bool:
    """Return whether a completion is of the model, if one is given, and has the metadata."""
    stored = _decode(completion)
    if model is not None and stored["model"] != model:
        return False
    return all(stored["metadata"].get(key) == value for key, value in metadata.items())


def encode_list(completions: Sequence[bytes], more: bool) -> bytes:
    return encode_page([_decode(completion) for completion in completions], more)


def encode_messages(
    completion_id: str, messages: bytes, after: str | None, limit: int, newest_first: bool
) -> bytes:
    """Encode a page of a completion's messages; the id of each is made of its position."""
    listed = [
        _add_id(message, f"{completion_id}-{i}")
        for i, message in enumerate(msgspec.json.decode(messages))
    ]
    if newest_first:
        listed.reverse()
    if after is not None:
        position = next((i for i, message in enumerate(listed) if message["id"] == after), None)
        if position is None:
            raise BadRequest("This completion has no such message.", param="after")
        listed = listed[position + 1 :]
    return encode_page(listed[:limit], len(listed) > limit)


def _add_id(message: dict[str, Json], message_id: str) -> dict[str, Json]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    if parts is not None:
        content = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
    whole = {"refusal": None} | message
    return whole | {"id": message_id, "content": content, "content_parts": parts}


def encode_deletion(completion_id: str) -> bytes:
    return encode({"id": completion_id, "object": "chat.completion.deleted", "deleted": True})
