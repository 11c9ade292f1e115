"""Conversations and their items."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import BadRequest
from dragoman.store.rows import StoredItem, StoreError
from dragoman.store.store import Store
from tests.support.stores import (
    add_conversation,
    add_items,
    add_response,
    finish_response,
    get_response,
    list_item_ids,
    make_conversation,
    make_items,
    make_response,
    run_scenario,
)


def test_pages_of_items(url: str) -> None:
    async def scenario(store: Store) -> None:
        every = [f"i{n}" for n in range(7)]
        await add_conversation(store, make_conversation("c"), make_items(*every[:3]))
        assert await add_items(store, "ann", "c", make_items(*every[3:]))
        for newest in (False, True):
            order = every[::-1] if newest else every
            for limit in (1, 3, 100):
                read: list[str] = []
                while page := await list_item_ids(
                    store, after=read[-1] if read else None, limit=limit, newest_first=newest
                ):
                    assert len(page) <= limit
                    read += page
                assert read == order
        with pytest.raises(BadRequest) as caught:
            await list_item_ids(store, after="nowhere")
        assert caught.value.param == "after"
        assert await list_item_ids(store, "nowhere") is None

    run_scenario(url, scenario)


def test_an_item_is_stored_once_and_can_be_deleted(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_conversation(
            store, make_conversation("c"), [*make_items("a", "b"), StoredItem("a", b"again")]
        )
        assert await add_items(store, "ann", "c", [StoredItem("a", b"later"), *make_items("d")])
        assert await list_item_ids(store) == ["a", "b", "d"]
        assert await store.read(
            lambda tx: tx.conversations.get_item("ann", "c", "a")
        ) == StoredItem("a", b"a")
        assert await store.write(lambda tx: tx.conversations.delete_item("ann", "c", "d"))
        assert not await store.write(lambda tx: tx.conversations.delete_item("ann", "c", "d"))
        assert await store.read(lambda tx: tx.conversations.get_item("ann", "c", "d")) is None
        await add_items(store, "ann", "c", make_items("e"))
        assert await list_item_ids(store) == ["a", "b", "e"]

    run_scenario(url, scenario)


def test_a_conversation_can_be_updated_and_deleted(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_conversation(store, make_conversation("c", metadata=b'{"a":1}'), make_items("a"))
        assert await store.read(lambda tx: tx.conversations.get("ann", "c")) == make_conversation(
            "c", metadata=b'{"a":1}'
        )
        changed = make_conversation("c", metadata=b'{"b":2}')
        assert (
            await store.write(lambda tx: tx.conversations.update("ann", "c", b'{"b":2}')) == changed
        )
        assert await store.read(lambda tx: tx.conversations.get("ann", "c")) == changed
        with pytest.raises(StoreError):
            await add_conversation(store, make_conversation("c"), make_items("b"))
        assert await store.write(lambda tx: tx.delete_conversation("ann", "c"))
        assert await store.read(lambda tx: tx.conversations.get("ann", "c")) is None
        assert await list_item_ids(store) is None
        assert not await add_items(store, "ann", "c", make_items("b"))
        await add_conversation(store, make_conversation("c"))
        assert await list_item_ids(store) == []

    run_scenario(url, scenario)


def test_items_added_by_two_servers_do_not_collide(url: str) -> None:
    async def scenario(*stores: Store) -> None:
        await add_conversation(stores[0], make_conversation("c"))
        pairs = [(store, f"{n}-{turn}") for turn in range(8) for n, store in enumerate(stores)]
        added = await asyncio.gather(
            *(add_items(store, "ann", "c", make_items(name, name + "+")) for store, name in pairs)
        )
        assert all(added)
        ids = await list_item_ids(stores[0])
        assert ids is not None
        assert sorted(ids) == sorted(part for _, name in pairs for part in (name, name + "+"))
        assert all(second == first + "+" for first, second in zip(ids[::2], ids[1::2], strict=True))

    run_scenario(url, scenario, stores=2)


def test_finishing_a_response_adds_its_items_once(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_conversation(store, make_conversation("c"))
        await add_response(store, make_response("r", conversation="c"))
        assert await finish_response(store, "r", "completed", b"1", make_items("a", "b"))
        assert not await finish_response(store, "r", "completed", b"2", make_items("x"))
        assert await list_item_ids(store) == ["a", "b"]
        await add_response(store, make_response("alone"))
        assert await finish_response(store, "alone", "completed", b"1", make_items("x"))
        await add_response(store, make_response("late", conversation="c"))
        await store.write(lambda tx: tx.delete_conversation("ann", "c"))
        assert await finish_response(store, "late", "completed", b"1", make_items("y"))
        row = await get_response(store, "ann", "late")
        assert row is not None
        assert row.status == "completed"

    run_scenario(url, scenario)
