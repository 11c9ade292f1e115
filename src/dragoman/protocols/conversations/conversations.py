"""Conversations: items that are kept under a name, to go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.responses.decode.items import Items, normalize_items
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.content import MEDIA_TYPES
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.openai import Metadata, encode


class NewConversation(Struct):
    """A conversation, and what it begins with."""

    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Struct):
    """What is noted of a conversation, in place of what was."""

    metadata: Metadata | None


class NewConversationItems(Struct):
    """Items to add to a conversation."""

    items: Items
    include: Any = None


class ConversationContent(Struct, frozen=True):
    """A new conversation as it is kept."""

    items: list[Item]
    metadata: dict[str, str]


def decode_new(body: bytes, strict: bool = False) -> ConversationContent:
    said = decode_body(body, NewConversation, strict)
    return ConversationContent(_kept(said.items), said.metadata or {})


def decode_update(body: bytes, strict: bool = False) -> dict[str, str]:
    return decode_body(body, ConversationUpdate, strict).metadata or {}


def decode_items(body: bytes, strict: bool = False) -> list[Item]:
    return _kept(decode_body(body, NewConversationItems, strict).items)


def _kept(said: list[Item] | None) -> list[Item]:
    found = normalize_items(said, "items")
    for i, item in enumerate(found):
        if item["type"] == "item_reference":
            raise BadRequest(f"`items[{i}]` must be an item itself.", param=f"items[{i}]")
        _reject_media(item, f"items[{i}].content")
    return found


def _reject_media(item: Item, at: str) -> None:
    """Reject messages with media: every response that used the conversation would fail."""
    if item["type"] != "message":
        return
    for i, part in enumerate(item["content"]):
        if part["type"] in MEDIA_TYPES:
            raise Unsupported(
                f"Conversations store text only, not `{part['type']}`.", param=f"{at}[{i}]"
            )


def encode_conversation(name: str, created: int, metadata: bytes) -> bytes:
    """A conversation; `metadata` is JSON as it was kept."""
    noted = msgspec.Raw(metadata)
    return encode({"id": name, "object": "conversation", "created_at": created, "metadata": noted})


def encode_deletion(name: str) -> bytes:
    return encode({"id": name, "object": "conversation.deleted", "deleted": True})


def encode_item_list(items: Sequence[Item], more: bool) -> bytes:
    """A page of items, of a conversation or of what a response was asked; `more` are behind it."""
    return encode(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": more,
        }
    )
