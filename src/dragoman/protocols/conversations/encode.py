"""Encode conversations and pages of their items."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.openai import encode, encode_page


def encode_conversation(name: str, created: int, metadata: bytes) -> bytes:
    """Encode a conversation; `metadata` is JSON as it is stored."""
    return encode(
        {
            "id": name,
            "object": "conversation",
            "created_at": created,
            "metadata": msgspec.Raw(metadata),
        }
    )


def encode_deletion(name: str) -> bytes:
    return encode({"id": name, "object": "conversation.deleted", "deleted": True})


def encode_item_list(items: Sequence[Item], more: bool) -> bytes:
    """Encode a page of items of a conversation or of a response's input; `more` follow it."""
    return encode_page(items, more)
