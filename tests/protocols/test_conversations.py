"""Decoding and encoding conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource
from openai.types.conversations.conversation_item_list import ConversationItemList

from dragoman.errors import BadRequest
from dragoman.protocols import conversations


def make_body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


USER = {"role": "user", "content": "hi"}
REFERENCE = {"type": "item_reference", "id": "msg_1"}


@pytest.mark.parametrize("raw", [b"{}", make_body(items=None, metadata=None), make_body(items=[])])
def test_a_conversation_can_begin_empty(raw: bytes) -> None:
    conversation = conversations.decode_new(raw)
    assert (conversation.items, conversation.metadata) == ([], {})


def test_items_are_normalized_as_in_responses() -> None:
    conversation = conversations.decode_new(make_body(items=[USER], metadata={"a": "b"}))
    (item,) = conversation.items
    assert item["id"].startswith("msg_")
    assert item["type"] == "message"
    assert item["status"] == "completed"
    assert item["content"] == [{"type": "input_text", "text": "hi"}]
    assert conversation.metadata == {"a": "b"}
    (repeated,) = conversations.decode_items(make_body(items=[item]))
    assert repeated == item


@pytest.mark.parametrize(("metadata", "expected"), [({"a": "b"}, {"a": "b"}), (None, {}), ({}, {})])
def test_metadata_can_be_updated(metadata: Any, expected: dict[str, str]) -> None:
    assert conversations.decode_update(make_body(metadata=metadata)) == expected


LARGEST_METADATA = {f"{i:064}": "y" * 512 for i in range(16)}
INVALID: list[tuple[Any, dict[str, Any], str | None]] = [
    (conversations.decode_update, {}, "metadata"),
    (conversations.decode_update, {"metadata": {"a": 5}}, "metadata"),
    (conversations.decode_update, {"metadata": LARGEST_METADATA | {"x": "y"}}, "metadata"),
    (conversations.decode_update, {"metadata": {"x" * 65: "y"}}, "metadata"),
    (conversations.decode_new, {"metadata": {"x": "y" * 513}}, "metadata"),
    (conversations.decode_new, {"items": "hi"}, "items"),
    (conversations.decode_new, {"items": [{"role": "user"}]}, "items[0].content"),
    (conversations.decode_new, {"items": [{"id": "msg_1"}]}, "items[0]"),
    (conversations.decode_items, {}, "items"),
    (
        conversations.decode_items,
        {"items": [USER, {"type": "item_reference", "id": "a"}]},
        "items[1]",
    ),
    (
        conversations.decode_items,
        {"items": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "items[0].content[0]",
    ),
]


@pytest.mark.parametrize(("decode", "fields", "param"), INVALID)
def test_invalid_fields_are_named(decode: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(make_body(**fields))
    assert caught.value.param == param


def test_the_largest_metadata_is_accepted() -> None:
    assert conversations.decode_update(make_body(metadata=LARGEST_METADATA)) == LARGEST_METADATA


def test_unknown_fields_are_ignored_unless_the_server_is_strict() -> None:
    for decode, raw in (
        (conversations.decode_new, make_body(x=1)),
        (conversations.decode_update, make_body(metadata={}, x=1)),
        (conversations.decode_items, make_body(items=[USER], x=1)),
    ):
        decode(raw)
        with pytest.raises(BadRequest):
            decode(raw, strict=True)


def test_encoded_conversations_are_valid_for_clients() -> None:
    encoded = conversations.encode_conversation("conv_1", 5, b'{"a":"b"}')
    assert json.loads(encoded) == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 5,
        "metadata": {"a": "b"},
    }
    Conversation.model_validate_json(encoded)
    ConversationDeletedResource.model_validate_json(conversations.encode_deletion("conv_1"))
    items = conversations.decode_items(make_body(items=[USER, USER]))
    page = conversations.encode_item_list(items, more=True)
    page_fields = ConversationItemList.model_validate_json(page)
    assert (page_fields.first_id, page_fields.last_id) == (items[0]["id"], items[1]["id"])
    assert page_fields.has_more
    empty = json.loads(conversations.encode_item_list([], more=False))
    assert empty == {
        "object": "list",
        "data": [],
        "first_id": "",
        "last_id": "",
        "has_more": False,
    }
