"""Limits: rows that are too large, expired or too many, and what is deleted with them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from dragoman.errors import TooLarge
from dragoman.store.rows import ROW, StoredItem, StoredTurn, StoreLimits, SweepCounts
from dragoman.store.store import Store
from dragoman.store.tables import METADATA, OWNED_TABLES
from dragoman.store.transaction import Transaction
from tests.support.stores import (
    add_completion,
    add_conversation,
    add_items,
    add_response,
    add_rows,
    append_frames,
    delete_response,
    execute,
    finish_response,
    get_response,
    get_turns,
    list_history,
    list_item_ids,
    make_completion,
    make_conversation,
    make_items,
    make_response,
    open_store,
    put_turns,
    run_scenario,
    sum_row_sizes,
    sum_size_columns,
    update_response,
    wait_until,
)

pytestmark = pytest.mark.slow


def test_rows_that_are_too_large_are_rejected(url: str) -> None:
    big = b"x" * 101
    item, frame = [StoredItem("i", big)], [(9, big)]

    async def scenario(store: Store) -> None:
        await add_rows(store)
        for write in (
            add_response(store, make_response("s", body=b"x" * 51, input=b"x" * 50)),
            update_response(store, "ann", "r", "completed", big),
            finish_response(store, "r", "completed", big),
            finish_response(store, "r", "completed", b"", item),
            finish_response(store, "r", "completed", b"", frames=frame),
            append_frames(store, "r", frame),
            add_conversation(store, make_conversation("d", metadata=big)),
            add_conversation(store, make_conversation("d"), item),
            store.write(lambda tx: tx.conversations.update("ann", "c", big)),
            add_items(store, "ann", "c", item),
            put_turns(store, "ann", [StoredTurn("k", "m", big)]),
            add_completion(store, make_completion("d", body=b"x" * 51, messages=b"x" * 50)),
            store.write(lambda tx: tx.completions.update("ann", "chat", big)),
            add_response(store, make_response("n" * 513)),
            add_response(store, make_response("s"), make_items("n" * 513)),
            add_items(store, "ann", "c", [StoredItem("n" * 513, b"")]),
        ):
            with pytest.raises(TooLarge):
                await write
        row = await get_response(store, "ann", "r")
        assert row is not None
        assert row.status == "in_progress"
        assert await get_response(store, "ann", "s") is None
        await add_response(store, make_response("s", body=b"x" * 50, input=b"x" * 50))

    run_scenario(url, scenario, StoreLimits(row=100))


def test_expired_rows_are_deleted(url: str) -> None:
    old, now = int(time.time()) - 1000, int(time.time())

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("old", created=old, status="completed"))
        await append_frames(store, "old", [(0, b"")])
        await add_response(store, make_response("runs", created=old))
        await add_response(store, make_response("new", created=now, status="completed"))
        await add_completion(store, make_completion("old", created=old))
        for owner in ("old", "new"):
            await add_conversation(store, make_conversation(owner), make_items("a"))
            await put_turns(store, "ann", [StoredTurn(owner, "m", b"1")])
        for table in ("responses", "conversations", "memories"):
            column = "key" if table == "memories" else "id"
            execute(url, f"UPDATE {table} SET touched = {old} WHERE {column} <> 'new'")  # noqa: S608
        assert await store.sweep() == SweepCounts(expired=4)
        assert await store.sweep() == SweepCounts()
        rows = {name: await get_response(store, "ann", name) for name in ("old", "runs", "new")}
        assert [name for name, row in rows.items() if row] == ["runs", "new"]
        assert [await list_item_ids(store, name) for name in ("old", "new")] == [None, ["a"]]
        assert await get_turns(store, "ann", ["old", "new"]) == [StoredTurn("new", "m", b"1")]

    run_scenario(url, scenario, StoreLimits(ttl=500))


def test_the_oldest_rows_are_evicted_when_the_store_is_too_large(url: str) -> None:
    async def scenario(store: Store) -> None:
        now = int(time.time())
        await add_response(store, make_response("runs", created=now - 5000, body=b"x" * 300))
        for age in range(10, 0, -1):
            row = make_response(f"r{age}", created=now - age * 100, body=b"x" * 100, input=b"")
            await add_response(store, row)
            await append_frames(store, row.id, [(0, b"y" * 100)])
            await finish_response(store, row.id, "completed", row.body, frames=[(1, b"z" * 100)])
        await add_conversation(store, make_conversation("c"), make_items("a" * 98))
        await put_turns(store, "ann", [StoredTurn("k", "m", b"x" * 100)])
        execute(url, f"UPDATE conversations SET touched = {now - 550}")  # noqa: S608
        execute(url, f"UPDATE memories SET touched = {now - 850}")  # noqa: S608
        execute(url, "UPDATE responses SET touched = created")
        # 302 running, 3000 in responses, 100 in a conversation, 100 in a turn; and their 45 rows
        assert await store.sweep() == SweepCounts()
        strict = await open_store(url, StoreLimits(size=302 + 1500 + 150 + ROW * (2 + 5 * 4 + 2)))
        assert await strict.sweep() == SweepCounts(evicted=6)
        assert await strict.sweep() == SweepCounts()
        await strict.aclose()
        left = [age for age in range(1, 11) if await get_response(store, "ann", f"r{age}")]
        assert left == [1, 2, 3, 4, 5]
        assert await get_response(store, "ann", "runs") is not None
        assert await list_item_ids(store) == ["a" * 98]
        assert await get_turns(store, "ann", ["k"]) == []

    run_scenario(url, scenario)


def test_rows_are_deleted_in_batches(url: str) -> None:
    async def scenario(store: Store) -> None:
        await put_turns(store, "ann", [StoredTurn(f"{n}", "m", b"x" * 10) for n in range(1000)])
        strict = await open_store(url, StoreLimits(size=100 * (ROW + 10)))
        assert await strict.sweep() == SweepCounts(evicted=900)
        execute(url, "UPDATE memories SET touched = 0")
        assert await strict.sweep() == SweepCounts(expired=100)
        await strict.aclose()

    run_scenario(url, scenario)


def test_writing_a_lot_starts_a_sweep(url: str) -> None:
    async def scenario(store: Store) -> None:
        for n in range(30):
            await add_response(
                store, make_response(f"r{n}", created=n, body=b"x" * 100, status="failed")
            )

        async def is_evicted() -> bool:
            return await get_response(store, "ann", "r0") is None

        await wait_until(is_evicted)
        assert await get_response(store, "ann", "r29") is not None

    run_scenario(url, scenario, StoreLimits(size=14_000, ttl=1e10))


async def add_continued_chain(url: str, store: Store) -> None:
    """Add two old chains of two responses, and continue one of them."""
    old = int(time.time()) - 1000
    for name, previous in {"a": None, "b": "a", "x": None, "y": "x"}.items():
        await add_response(
            store, make_response(name, created=old, status="completed", previous=previous)
        )
    execute(url, f"UPDATE responses SET touched = {old}")  # noqa: S608
    await add_response(store, make_response("c", status="completed", previous="b"))


def test_continuing_a_response_keeps_its_history_from_expiring(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_continued_chain(url, store)
        assert await store.sweep() == SweepCounts(expired=2)
        assert await list_history(store, "c") == ["a", "b", "c"]
        assert await list_history(store, "y") is None

    run_scenario(url, scenario, StoreLimits(ttl=500))


def test_continuing_a_response_keeps_its_history_from_being_evicted(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_continued_chain(url, store)
        strict = await open_store(url, StoreLimits(size=3 * (2 * ROW + 10)))
        assert await strict.sweep() == SweepCounts(evicted=2)
        await strict.aclose()
        assert await list_history(store, "c") == ["a", "b", "c"]

    run_scenario(url, scenario)


def test_another_owner_does_not_renew_a_history(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_continued_chain(url, store)
        await add_response(store, make_response("z", owner="bob", previous="y"))
        assert await store.sweep() == SweepCounts(expired=2)

    run_scenario(url, scenario, StoreLimits(ttl=500))


def test_a_chain_can_be_continued_many_times_at_once(url: str) -> None:
    async def scenario(*stores: Store) -> None:
        for turn in range(40):
            await add_response(
                stores[0], make_response(f"r{turn}", previous=f"r{turn - 1}" if turn else None)
            )
        forks = [(store, f"{k}-{n}", n) for n in range(40) for k, store in enumerate(stores)]
        await asyncio.gather(
            *(
                add_response(store, make_response(name, previous=f"r{n}"))
                for store, name, n in forks
            )
        )
        for store, name, n in forks:
            assert await list_history(store, name) == [*(f"r{turn}" for turn in range(n + 1)), name]

    run_scenario(url, scenario, stores=3)


DELETIONS: dict[str, Callable[[Transaction], bool]] = {
    "delete_response": lambda tx: tx.delete_response("ann", "r"),
    "delete_completion": lambda tx: tx.delete_completion("ann", "chat"),
    "delete_conversation": lambda tx: tx.delete_conversation("ann", "c"),
}


async def add_rows_with_turns(store: Store) -> None:
    await add_rows(store)
    for source in ("r", "chat", "other"):
        rows = [StoredTurn(f"{source}{n}", "m", b"turn", source) for n in range(3)]
        await put_turns(store, "ann", rows)
    await put_turns(store, "bob", [StoredTurn("k", "m", b"turn", "r")])


async def list_turn_sources(store: Store) -> set[str | None]:
    keys = [f"{source}{n}" for source in ("r", "chat", "other") for n in range(3)]
    return {row.source for row in await get_turns(store, "ann", ["k", *keys])}


@pytest.mark.parametrize("deletion", DELETIONS)
def test_turns_are_deleted_with_their_source(url: str, deletion: str) -> None:
    deleted = "chat" if deletion == "delete_completion" else "r"

    async def scenario(store: Store) -> None:
        await add_rows_with_turns(store)
        assert await store.write(DELETIONS[deletion])
        assert await list_turn_sources(store) == {None, "r", "chat", "other"} - {deleted}
        assert len(await get_turns(store, "bob", ["k"])) == 1

    run_scenario(url, scenario)


AGE = 100_000  # seconds; the other rows may be as old as the test run


@pytest.mark.parametrize("reason", ["age", "size"])
def test_a_sweep_deletes_turns_with_their_source(url: str, reason: str) -> None:
    async def scenario(store: Store) -> None:
        await add_rows_with_turns(store)
        await update_response(store, "ann", "r", "completed", b"")
        execute(url, f"UPDATE responses SET touched = touched - {AGE}")  # noqa: S608
        execute(url, f"UPDATE completions SET created = created - {AGE}")  # noqa: S608
        limits = StoreLimits(ttl=AGE / 2)
        if reason == "size":  # exactly what is left then, so that nothing else is evicted
            left = sum_size_columns(url) - sum_row_sizes(url, "r", "chat")
            limits = StoreLimits(size=left)
        strict = await open_store(url, limits)
        counts = await strict.sweep()
        assert counts == (SweepCounts(expired=2) if reason == "age" else SweepCounts(evicted=2))
        await strict.aclose()
        assert await list_turn_sources(store) == {None, "other"}

    run_scenario(url, scenario)


def test_the_last_writer_of_a_turn_is_its_source(url: str) -> None:
    async def scenario(store: Store) -> None:
        for source in ("a", "b"):
            await put_turns(store, "ann", [StoredTurn("k", "m", b"turn", source)])
        await delete_response(store, "ann", "a")
        assert await get_turns(store, "ann", ["k"]) == [StoredTurn("k", "m", b"turn", "b")]

    run_scenario(url, scenario)


def test_rows_of_every_table_with_owners_and_sizes_are_deleted() -> None:
    owned = {
        name for name, table in METADATA.tables.items() if {"owner", "size"} <= {*table.c.keys()}
    }
    assert {table.name for table, _ in OWNED_TABLES} == owned
