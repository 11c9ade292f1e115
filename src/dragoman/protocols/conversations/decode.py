"""Decode requests that create a conversation, change it or add items to it."""

from __future__ import annotations

from msgspec import Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.responses.decode.items import Items, normalize_items
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.content import MEDIA_TYPES
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.openai import Metadata
from dragoman.types import Json


class NewConversation(Struct):
    """A conversation and its first items."""

    items: Items | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Struct):
    """Metadata that replaces a conversation's metadata."""

    metadata: Metadata | None


class NewConversationItems(Struct):
    """Items to add to a conversation."""

    items: Items
    include: Json = None


class ConversationContent(Struct, frozen=True):
    """A new conversation as it is stored."""

    items: list[Item]
    metadata: dict[str, str]


def decode_new(body: bytes, strict: bool = False) -> ConversationContent:
    fields = decode_body(body, NewConversation, strict)
    return ConversationContent(_normalize(fields.items), fields.metadata or {})


def decode_update(body: bytes, strict: bool = False) -> dict[str, str]:
    return decode_body(body, ConversationUpdate, strict).metadata or {}


def decode_items(body: bytes, strict: bool = False) -> list[Item]:
    return _normalize(decode_body(body, NewConversationItems, strict).items)


def _normalize(items: list[Item] | None) -> list[Item]:
    normalized = normalize_items(items, "items")
    for i, item in enumerate(normalized):
        if item["type"] == "item_reference":
            raise BadRequest(f"`items[{i}]` must be an item, not a reference.", param=f"items[{i}]")
        _reject_media(item, f"items[{i}].content")
    return normalized


def _reject_media(item: Item, path: str) -> None:
    """Reject messages with media: every response that used the conversation would fail."""
    if item["type"] != "message":
        return
    for i, part in enumerate(item["content"]):
        if part["type"] in MEDIA_TYPES:
            raise Unsupported(
                f"Conversations store text only, not `{part['type']}`.", param=f"{path}[{i}]"
            )
