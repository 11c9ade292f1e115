"""Every method of a transaction: rows of other owners do not exist, and sizes are right."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.store.batches.rows import LineResult
from dragoman.store.rows import ROW, StoredItem, StoredTurn, StoreLimits
from dragoman.store.store import Store
from dragoman.store.transaction import Transaction
from tests.store.operations import OWNED, WITHOUT_OWNER, WITHOUT_RESULT, list_methods
from tests.support.stores import (
    NOW,
    add_rows,
    finish_response,
    get_response,
    get_turns,
    list_frames,
    list_item_ids,
    make_batch,
    make_completion,
    make_conversation,
    make_file,
    make_items,
    make_response,
    put_turns,
    run_scenario,
    sum_row_sizes,
    sum_size_columns,
)

pytestmark = pytest.mark.slow


def test_every_method_that_takes_an_owner_is_tested_with_another_owner() -> None:
    methods = list_methods()
    assert set(methods) == set(OWNED) | WITHOUT_RESULT | WITHOUT_OWNER
    owned = {
        name for name, method in methods.items() if "owner" in inspect.signature(method).parameters
    }
    assert owned == set(OWNED) | WITHOUT_RESULT


@pytest.mark.parametrize("method", OWNED)
def test_rows_of_another_owner_do_not_exist(url: str, method: str) -> None:
    operation, nothing = OWNED[method]

    async def run(store: Store, owner: str) -> Any:
        return await store.write(lambda tx: operation(tx, owner))

    async def load_rows(store: Store) -> list[Any]:
        return [
            await get_response(store, "ann", "r"),
            await list_frames(store, "ann", "r", -1),
            await store.read(lambda tx: tx.conversations.get("ann", "c")),
            await list_item_ids(store),
            await get_turns(store, "ann", ["k"]),
            await store.read(lambda tx: tx.responses.list_cancel_requests(["r"])),
        ]

    async def scenario(store: Store) -> None:
        await add_rows(store)
        before = await load_rows(store)
        for stranger in ("bob", "", "ANN", "ann\0", "ann%", "an_"):
            assert await run(store, stranger) == nothing
        assert await load_rows(store) == before
        assert await run(store, "ann") != nothing

    run_scenario(url, scenario)


def test_finishing_a_response_of_another_owner_has_no_effect(url: str) -> None:
    async def finish(store: Store, owner: str) -> bool:
        row = make_response("r", owner=owner, status="completed", body=b"new")
        return await store.write(lambda tx: tx.finish_response(row))

    async def scenario(store: Store) -> None:
        await add_rows(store)
        for stranger in ("bob", "", "ANN", "ann\0", "ann%", "an_"):
            assert not await finish(store, stranger)
        assert await get_response(store, "ann", "r") == make_response("r", conversation="c")
        assert await finish_response(store, "r", "completed", b"new")

    run_scenario(url, scenario)


def test_owners_can_use_the_same_key(url: str) -> None:
    async def scenario(store: Store) -> None:
        for owner in ("ann", "bob", ""):
            await put_turns(store, owner, [StoredTurn("k", "m", owner.encode())])
        for owner in ("ann", "bob", ""):
            assert await get_turns(store, owner, ["k"]) == [StoredTurn("k", "m", owner.encode())]

    run_scenario(url, scenario)


def run_a_batch(tx: Transaction, *, end: bool) -> None:
    """Claim a batch and record the results of its lines."""
    [batch] = tx.claim_batches(Counter(), 9)
    tx.batches.start(batch, 3, None, NOW + 1e6)
    tx.batches.record_results(
        batch, [LineResult(1, b"one"), LineResult(3, b"three", has_failed=True)]
    )
    tx.batches.record_results(batch, [LineResult(1, b"again"), LineResult(2, b"")])
    if end:
        tx.batches.finish(batch, "completed", 1e6, b"[]")


WRITES: dict[str, Callable[[Transaction], Any]] = {
    "files.add": lambda tx: tx.files.add(make_file("h")),
    "files.delete_piece": lambda tx: tx.files.delete_piece("f"),
    "batches.add": lambda tx: tx.batches.add(make_batch("d", metadata=b"12")),
    "batches.record_results": lambda tx: run_a_batch(tx, end=False),
    "batches.finish": lambda tx: run_a_batch(tx, end=True),
    "add_response": lambda tx: tx.add_response(
        make_response("new", previous="r", conversation="c"),
        [StoredItem("i0", b"00", is_output=True), StoredItem("i3", b"three", is_output=True)],
    ),
    "responses.add": lambda tx: tx.responses.add(make_response("new", previous="r")),
    "responses.append_frames": lambda tx: tx.responses.append_frames(
        "r", [(0, b"again"), (1, b"one"), (1, b"two"), (2, b"")]
    ),
    "responses.index_output_items": lambda tx: tx.responses.index_output_items(
        "ann", "r", ["i0", "i7"]
    ),
    "responses.update, longer": lambda tx: tx.responses.update(
        "ann", "r", "in_progress", b"x" * 99
    ),
    "responses.update, final": lambda tx: tx.responses.update("ann", "r", "failed", b""),
    "finish_response": lambda tx: tx.finish_response(
        make_response("r", status="completed", body=b"12"),
        [StoredItem("i9", b"9", is_output=True)],
        [(0, b"0"), (9, b"9")],
    ),
    "conversations.add": lambda tx: tx.conversations.add(
        make_conversation("d"), make_items("x", "y", "x")
    ),
    "conversations.add_items, some existing": lambda tx: tx.conversations.add_items(
        "ann", "c", make_items("i", "j", "j")
    ),
    "completions.add": lambda tx: tx.completions.add(make_completion("other", messages=b"[1]")),
    "key_values.put_turns": lambda tx: tx.key_values.put_turns(
        "ann", [StoredTurn("k", "m", b"more"), StoredTurn("l", "m", b"")]
    ),
    "key_values.delete_turns": lambda tx: tx.key_values.delete_turns("ann", ["r"]),
    "key_values.get_or_create_secret": lambda tx: tx.key_values.get_or_create_secret("key"),
    "maintenance.delete_expired": lambda tx: tx.maintenance.delete_expired(-10.0),
    "maintenance.evict_oldest": lambda tx: tx.maintenance.evict_oldest(StoreLimits(size=0)),
} | {
    name: lambda tx, operation=operation: operation(tx, "ann")
    for name, (operation, _) in OWNED.items()
}


# methods that change no counted row, or that `test_servers` tests
NOT_COUNTED = {
    "files.read_chunks",
    "batches.start",  # with `record_results`
    "batches.claim",
    "batches.has_unclaimed",
    "batches.release",
    "batches.list_cancelling",
    "batches.list_done",
    "batches.finalize",
    "claim_batches",
    "servers.list_alive",
    "key_values.get_secret",
    "responses.list_cancel_requests",
    "responses.lock_running",
    "servers.register",
    "servers.record_heartbeat",
    "servers.unregister",
    "servers.list_dead",
    "servers.fail_responses",
}


def test_the_sizes_of_every_method_are_tested() -> None:
    assert set(list_methods()) - set(WRITES) == NOT_COUNTED


@pytest.mark.parametrize("write", WRITES)
def test_size_columns_equal_the_sizes_of_the_rows(url: str, write: str) -> None:
    async def scenario(store: Store) -> None:
        await add_rows(store)
        assert sum_size_columns(url) == sum_row_sizes(url) > 8 * ROW
        await store.write(WRITES[write])
        assert sum_size_columns(url) == sum_row_sizes(url)

    run_scenario(url, scenario)
    assert sum_size_columns(url) == sum_row_sizes(url)  # after the running response has failed


def test_a_sweep_leaves_the_sizes_right(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_rows(store)
        await store.sweep()
        assert sum_size_columns(url) == sum_row_sizes(url) > 8 * ROW

    run_scenario(url, scenario)
