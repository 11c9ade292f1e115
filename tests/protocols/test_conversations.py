"""Conversations: what arrives, what is kept, what is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource
from openai.types.conversations.conversation_item_list import ConversationItemList

from dragoman.errors import BadRequest
from dragoman.protocols import conversations


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


USER = {"role": "user", "content": "hi"}
REFERENCE = {"type": "item_reference", "id": "msg_1"}


@pytest.mark.parametrize("said", [b"{}", body(items=None, metadata=None), body(items=[])])
def test_a_conversation_can_begin_with_nothing(said: bytes) -> None:
    found = conversations.decode_new(said)
    assert (found.items, found.metadata) == ([], {})


def test_items_are_kept_as_responses_keep_them() -> None:
    found = conversations.decode_new(body(items=[USER], metadata={"a": "b"}))
    (item,) = found.items
    assert item["id"].startswith("msg_")
    assert item["type"] == "message"
    assert item["status"] == "completed"
    assert item["content"] == [{"type": "input_text", "text": "hi"}]
    assert found.metadata == {"a": "b"}
    (again,) = conversations.decode_items(body(items=[item]))
    assert again == item


@pytest.mark.parametrize(("said", "noted"), [({"a": "b"}, {"a": "b"}), (None, {}), ({}, {})])
def test_metadata_can_be_changed(said: Any, noted: dict[str, str]) -> None:
    assert conversations.decode_update(body(metadata=said)) == noted


LARGEST = {f"{i:064}": "y" * 512 for i in range(16)}
WRONG: list[tuple[Any, dict[str, Any], str | None]] = [
    (conversations.decode_update, {}, "metadata"),
    (conversations.decode_update, {"metadata": {"a": 5}}, "metadata"),
    (conversations.decode_update, {"metadata": LARGEST | {"x": "y"}}, "metadata"),
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


@pytest.mark.parametrize(("decode", "said", "param"), WRONG)
def test_what_is_wrong_is_named(decode: Any, said: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        decode(body(**said))
    assert refusal.value.param == param


def test_metadata_may_be_as_large_as_it_may_be() -> None:
    assert conversations.decode_update(body(metadata=LARGEST)) == LARGEST


def test_unknown_fields_are_ignored_unless_the_server_is_strict() -> None:
    for decode, said in (
        (conversations.decode_new, body(x=1)),
        (conversations.decode_update, body(metadata={}, x=1)),
        (conversations.decode_items, body(items=[USER], x=1)),
    ):
        decode(said)
        with pytest.raises(BadRequest):
            decode(said, strict=True)


def test_what_is_shown_is_what_clients_know() -> None:
    shown = conversations.encode_conversation("conv_1", 5, b'{"a":"b"}')
    assert json.loads(shown) == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 5,
        "metadata": {"a": "b"},
    }
    Conversation.model_validate_json(shown)
    ConversationDeletedResource.model_validate_json(conversations.encode_deletion("conv_1"))
    items = conversations.decode_items(body(items=[USER, USER]))
    page = conversations.encode_item_list(items, more=True)
    found = ConversationItemList.model_validate_json(page)
    assert (found.first_id, found.last_id) == (items[0]["id"], items[1]["id"])
    assert found.has_more
    nothing = json.loads(conversations.encode_item_list([], more=False))
    assert nothing == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
