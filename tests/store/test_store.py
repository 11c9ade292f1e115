"""Repositories and transactions: rows come back unchanged, for their owner alone, and end once."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from dragoman.errors import BadRequest, TooLarge
from dragoman.store.rows import (
    ROW,
    RUNNING,
    Status,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoredTurn,
    StoreError,
    StoreLimits,
    SweepCounts,
)
from dragoman.store.servers import ServerProcess
from dragoman.store.store import Store
from dragoman.store.transaction import Transaction
from tests.support.stores import (
    DATABASES,
    NOW,
    add_completion,
    add_conversation,
    add_items,
    add_response,
    append_frames,
    create_database,
    delete_response,
    execute,
    fail_body,
    finish_response,
    get_history,
    get_response,
    get_secret,
    get_turns,
    list_frames,
    make_response,
    open_store,
    put_turns,
    run_scenario,
    update_response,
    wait_until,
)

STATUSES: tuple[Status, ...] = get_args(Status)
FINAL = [status for status in STATUSES if status not in RUNNING]
UNUSUAL_IDS = [
    "",
    "%",
    "%0000",
    "a\0b",
    "\ud800",
    "ünï 🦜",
    "x" * 512,
    "'; DROP TABLE responses; --",
]


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with create_database(request.param, tmp_path) as database:
        yield database


def make_conversation(
    conversation: str, owner: str = "ann", metadata: bytes = b"{}"
) -> StoredConversation:
    return StoredConversation(id=conversation, owner=owner, created=5, metadata=metadata)


def make_items(*ids: str) -> list[StoredItem]:
    return [StoredItem(item, item.encode()) for item in ids]


def make_completion(completion: str, **fields: Any) -> StoredCompletion:
    defaults: dict[str, Any] = {"created": NOW, "body": b"{}"}
    return StoredCompletion(id=completion, owner="ann", **(defaults | fields))


async def list_item_ids(store: Store, conversation: str = "c", **page: Any) -> list[str] | None:
    arguments = {"after": None, "limit": 1000, "newest_first": False} | page
    items = await store.read(
        lambda tx: tx.conversations.list_items("ann", conversation, **arguments)
    )
    return None if items is None else [item.id for item in items]


# owners

Operation = Callable[[Transaction, str], Any]
# every method that takes an owner: a call of it, and what it returns for another owner
OWNED: dict[str, tuple[Operation, Any]] = {
    "responses.get": (lambda tx, owner: tx.responses.get(owner, "r"), None),
    "responses.update": (
        lambda tx, owner: tx.responses.update(owner, "r", "in_progress", b"new"),
        False,
    ),
    "responses.get_conversation": (
        lambda tx, owner: tx.responses.get_conversation(owner, "r"),
        None,
    ),
    "responses.list_ids": (lambda tx, owner: tx.responses.list_ids(owner, "c"), []),
    "responses.get_history": (lambda tx, owner: tx.responses.get_history(owner, "r"), None),
    "responses.find_by_output_items": (
        lambda tx, owner: tx.responses.find_by_output_items(owner, ["i0"]),
        [],
    ),
    "responses.get_last_frame": (lambda tx, owner: tx.responses.get_last_frame(owner, "r"), None),
    "responses.list_frames": (lambda tx, owner: tx.responses.list_frames(owner, "r", -1), []),
    "responses.request_cancel": (lambda tx, owner: tx.responses.request_cancel(owner, "r"), False),
    "responses.delete": (lambda tx, owner: tx.responses.delete(owner, "r"), False),
    "delete_response": (lambda tx, owner: tx.delete_response(owner, "r"), False),
    "conversations.get": (lambda tx, owner: tx.conversations.get(owner, "c"), None),
    "conversations.update": (lambda tx, owner: tx.conversations.update(owner, "c", b"[]"), None),
    "conversations.delete": (lambda tx, owner: tx.conversations.delete(owner, "c"), False),
    "delete_conversation": (lambda tx, owner: tx.delete_conversation(owner, "c"), False),
    "conversations.add_items": (
        lambda tx, owner: tx.conversations.add_items(owner, "c", [StoredItem("i2", b"2")]),
        False,
    ),
    "conversations.list_items": (
        lambda tx, owner: tx.conversations.list_items(
            owner, "c", after=None, limit=9, newest_first=False
        ),
        None,
    ),
    "conversations.get_items": (
        lambda tx, owner: tx.conversations.get_items(owner, "c", ["i"]),
        {},
    ),
    "conversations.get_item": (lambda tx, owner: tx.conversations.get_item(owner, "c", "i"), None),
    "conversations.delete_item": (
        lambda tx, owner: tx.conversations.delete_item(owner, "c", "i"),
        False,
    ),
    "key_values.get_turns": (lambda tx, owner: tx.key_values.get_turns(owner, ["k"]), []),
    "completions.get": (lambda tx, owner: tx.completions.get(owner, "chat"), None),
    "completions.update": (lambda tx, owner: tx.completions.update(owner, "chat", b"new"), False),
    "completions.delete": (lambda tx, owner: tx.completions.delete(owner, "chat"), False),
    "delete_completion": (lambda tx, owner: tx.delete_completion(owner, "chat"), False),
    "completions.list_page": (
        lambda tx, owner: tx.completions.list_page(owner, after=None, limit=9, newest_first=False),
        [],
    ),
}
# methods that take an owner but return nothing: they cannot reveal or change another owner's rows
WITHOUT_RESULT = {
    "key_values.put_turns",
    "key_values.delete_turns",
    "responses.index_output_items",
}
# methods that take a whole row, or that only servers call
WITHOUT_OWNER = {
    "add_response",
    "finish_response",
    "responses.add",
    "responses.append_frames",
    "responses.list_cancel_requests",
    "responses.lock_running",
    "conversations.add",
    "completions.add",
    "key_values.get_or_create_secret",
    "servers.register",
    "servers.record_heartbeat",
    "servers.unregister",
    "servers.list_dead",
    "servers.fail_responses",
    "maintenance.delete_expired",
    "maintenance.evict_oldest",
}


def list_methods() -> dict[str, Callable[..., Any]]:
    """All public methods of a transaction and of its repositories."""
    connection: Any = None
    transaction = Transaction(connection, ServerProcess("s", "", "", 0, ""), row_limit=0)
    parts = {"": transaction} | {
        f"{name}.": part for name, part in vars(transaction).items() if name[0] != "_"
    }
    return {
        prefix + name: method
        for prefix, part in parts.items()
        for name, method in inspect.getmembers(part, inspect.ismethod)
        if name[0] != "_"
    }


async def add_rows(store: Store) -> None:
    """One row of each kind, owned by `ann`."""
    output = StoredItem("i0", b"0", is_output=True)
    await add_response(store, make_response("r", conversation="c"), [output])
    await append_frames(store, "r", [(0, b"zero")])
    await add_conversation(store, make_conversation("c"), make_items("i"))
    await put_turns(store, "ann", [StoredTurn("k", "m", b"turn")])
    await add_completion(store, make_completion("chat"))


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


# responses


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("unusual", UNUSUAL_IDS, ids=ascii)
def test_a_response_is_returned_unchanged(tmp_path: Path, unusual: str, status: Status) -> None:
    row = StoredResponse(
        id=unusual,
        owner=unusual,
        status=status,
        created=2**40,
        body=bytes(range(256)),
        input=b"",
        previous=unusual,
        conversation=unusual,
        background=status == "queued",
    )

    async def scenario(store: Store) -> None:
        await add_response(store, row)
        assert await get_response(store, unusual, unusual) == row

    run_scenario("sqlite://", scenario)


def test_unusual_ids_do_not_collide(url: str) -> None:
    async def scenario(store: Store) -> None:
        for name in UNUSUAL_IDS:
            await add_response(
                store, make_response(name, owner=name, body=name.encode("utf-8", "surrogatepass"))
            )
            await put_turns(store, name, [StoredTurn(name, name, b"1")])
        for name in UNUSUAL_IDS:
            row = await get_response(store, name, name)
            assert row is not None
            assert row.body == name.encode("utf-8", "surrogatepass")
            assert await get_turns(store, name, UNUSUAL_IDS) == [StoredTurn(name, name, b"1")]

    run_scenario(url, scenario)


def test_an_id_can_be_used_once(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        for owner in ("ann", "bob"):
            with pytest.raises(StoreError):
                await add_response(store, make_response("r", owner=owner, body=b"other"))
        assert await get_response(store, "ann", "r") == make_response("r")

    run_scenario(url, scenario)


@pytest.mark.parametrize("final", FINAL)
def test_a_final_status_never_changes(url: str, final: Status) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r", status="queued"))
        assert await update_response(store, "ann", "r", "in_progress", b"1")
        assert await append_frames(store, "r", [(0, b"first")])
        assert await finish_response(store, "r", final, b"2", frames=[(1, b"last")])
        for status in STATUSES:
            assert not await update_response(store, "ann", "r", status, b"3")
            assert not await finish_response(store, "r", status, b"3", frames=[(2, b"more")])
        assert not await append_frames(store, "r", [(2, b"more")])
        assert not await store.write(lambda tx: tx.responses.request_cancel("ann", "r"))
        await store.sweep()
        row = await get_response(store, "ann", "r")
        assert row is not None
        assert (row.status, row.body) == (final, b"2")
        assert await list_frames(store, "ann", "r", -1) == [(0, b"first"), (1, b"last")]

    run_scenario(url, scenario)


def test_one_of_many_concurrent_ends_wins(url: str) -> None:
    """Two stores end the same responses with every final status at once."""

    async def scenario(*stores: Store) -> None:
        attempts = [(store, status) for store in stores for status in FINAL]
        for number in range(5):
            response = f"r{number}"
            await add_response(stores[0], make_response(response))
            results = await asyncio.gather(
                *(
                    finish_response(store, response, status, b"%d" % n, frames=[(n, b"end")])
                    for n, (store, status) in enumerate(attempts)
                )
            )
            assert sum(results) == 1
            winner = results.index(True)
            row = await get_response(stores[1], "ann", response)
            assert row is not None
            assert (row.status, row.body) == (attempts[winner][1], b"%d" % winner)
            assert await list_frames(stores[1], "ann", response, -1) == [(winner, b"end")]

    run_scenario(url, scenario, stores=2)


def test_deleting_a_response_deletes_its_events(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        await append_frames(store, "r", [(0, b"a")])
        assert await delete_response(store, "ann", "r")
        assert not await delete_response(store, "ann", "r")
        assert not await append_frames(store, "r", [(1, b"b")])
        assert not await update_response(store, "ann", "r", "completed", b"")
        assert await get_response(store, "ann", "r") is None
        await add_response(store, make_response("r"))
        assert await list_frames(store, "ann", "r", -1) == []

    run_scenario(url, scenario)


def test_events_are_stored_once_and_read_in_order(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        await add_response(store, make_response("other"))
        await append_frames(store, "other", [(1, b"other")])
        await append_frames(store, "r", [(3, b"3"), (1, b"1")])
        await append_frames(store, "r", [(1, b"again"), (2, b"2"), (2, b"twice")])
        await append_frames(store, "r", [])
        frames = [(1, b"1"), (2, b"2"), (3, b"3")]
        for after in range(-1, 5):
            expected = [frame for frame in frames if frame[0] > after]
            assert await list_frames(store, "ann", "r", after) == expected
            assert await list_frames(store, "ann", "r", after, limit=1) == expected[:1]

    run_scenario(url, scenario)


CHAINS: dict[str, tuple[dict[str, str | None], list[str] | None]] = {
    "alone": ({"a": None}, ["a"]),
    "a chain": ({"a": None, "b": "a", "c": "b"}, ["a", "b", "c"]),
    "a fork": ({"a": None, "b": "a", "x": "a", "c": "b"}, ["a", "b", "c"]),
    "no such response": ({"a": None}, None),
}
INCOMPLETE: dict[str, tuple[dict[str, str | None], str]] = {
    "a missing link": ({"b": "a", "c": "b"}, "the beginning of its history has expired"),
    "a link of another owner": (
        {"other's": None, "c": "other's"},
        "the beginning of its history",
    ),
    "a circle": ({"b": "c", "c": "b"}, "more than 10,000"),
}


async def add_chain(store: Store, links: dict[str, str | None]) -> None:
    """Add responses, each with the one that it continues."""
    for name, previous in links.items():
        owner = "bob" if name == "other's" else "ann"
        await add_response(store, make_response(name, owner=owner, previous=previous))


async def list_history(store: Store, last: str) -> list[str] | None:
    history = await get_history(store, "ann", last)
    return None if history is None else [row.id for row in history]


@pytest.mark.parametrize("case", CHAINS)
def test_history_is_the_whole_chain(url: str, case: str) -> None:
    links, expected = CHAINS[case]

    async def scenario(store: Store) -> None:
        await add_chain(store, links)
        last = "nowhere" if case == "no such response" else list(links)[-1]
        assert await list_history(store, last) == expected

    run_scenario(url, scenario)


@pytest.mark.parametrize("case", INCOMPLETE)
def test_an_incomplete_chain_is_reported(url: str, case: str) -> None:
    links, reason = INCOMPLETE[case]

    async def scenario(store: Store) -> None:
        await add_chain(store, links)
        with pytest.raises(BadRequest, match=reason) as caught:
            await get_history(store, "ann", "c")
        assert caught.value.param == "previous_response_id"

    run_scenario(url, scenario)


def test_a_long_history_is_in_order(url: str) -> None:
    async def scenario(store: Store) -> None:
        for turn in range(60):
            previous = f"r{turn - 1}" if turn else None
            await add_response(
                store, make_response(f"r{turn}", previous=previous, input=b"%d" % turn)
            )
        history = await get_history(store, "ann", "r59")
        assert history is not None
        assert [row.input for row in history] == [b"%d" % turn for turn in range(60)]

    run_scenario(url, scenario)


def test_another_process_can_request_a_cancel(url: str) -> None:
    async def list_requests(store: Store, *responses: str) -> set[str]:
        return await store.read(lambda tx: tx.responses.list_cancel_requests(responses))

    async def request(store: Store, response: str) -> bool:
        return await store.write(lambda tx: tx.responses.request_cancel("ann", response))

    async def scenario(mine: Store, other: Store) -> None:
        for response in ("r", "s"):
            await add_response(mine, make_response(response))
        assert await list_requests(mine, "r", "s") == set()
        assert await request(other, "r")
        assert await list_requests(mine, "s") == set()
        assert await list_requests(mine, *map(str, range(2000)), "s", "r") == {"r"}
        assert await list_requests(mine) == set()
        assert not await request(other, "nowhere")

    run_scenario(url, scenario, stores=2)


# conversations


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


# secrets and turns


def test_a_secret_is_created_once(url: str) -> None:
    async def scenario(*stores: Store) -> set[bytes]:
        requests = [get_secret(store, "key") for store in stores for _ in range(5)]
        values = set(await asyncio.gather(*requests))
        assert [len(secret) for secret in values] == [32]
        assert len(await get_secret(stores[0], "other", 8)) == 8
        return values

    assert run_scenario(url, scenario, stores=3) == run_scenario(url, scenario, stores=1)


def test_the_newest_turn_of_a_key_is_returned(url: str) -> None:
    async def scenario(store: Store) -> None:
        await put_turns(store, "ann", [])
        await put_turns(store, "ann", [StoredTurn("k", "m", b"1"), StoredTurn("l", "m", b"1")])
        await put_turns(store, "ann", [StoredTurn("k", "n", b"2"), StoredTurn("k", "o", b"3")])
        k, other = StoredTurn("k", "o", b"3"), StoredTurn("l", "m", b"1")
        assert await get_turns(store, "ann", ["k", "l"]) == [k, other]
        assert await get_turns(store, "ann", ["l", "x", "k", "l"]) == [other, k]
        assert await get_turns(store, "ann", [*map(str, range(2000)), "k"]) == [k]
        assert await get_turns(store, "ann", []) == []

    run_scenario(url, scenario)


# limits


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


# continued responses


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


# turns are deleted with their source

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


@pytest.mark.parametrize("reason", ["age", "size"])
def test_a_sweep_deletes_turns_with_their_source(url: str, reason: str) -> None:
    async def scenario(store: Store) -> None:
        await add_rows_with_turns(store)
        await update_response(store, "ann", "r", "completed", b"")
        execute(url, "UPDATE responses SET touched = touched - 1000")
        execute(url, "UPDATE completions SET created = created - 1000")
        limits = StoreLimits(ttl=500)
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


# sizes

# the column that says which row a table's row belongs to, and the columns that count
COUNTED_COLUMNS = {
    "responses": ("id",),
    "bodies": ("response", "body", "input"),
    "frames": ("response", "data"),
    "holders": ("response",),
    "conversations": ("id", "metadata"),
    "items": ("conversation", "body"),
    "completions": ("id", "body", "messages"),
    "memories": ("source", "data"),
}


def sum_size_columns(url: str) -> int:
    tables = ("responses", "conversations", "completions", "memories")
    query = "SELECT coalesce(sum(size), 0) FROM "
    return sum(int(execute(url, query + table)[0][0]) for table in tables)


def sum_row_sizes(url: str, *ids: str) -> int:
    """The bytes of all rows, or of those that belong to these ids, each with what a row counts."""
    size = 0
    for table, columns in COUNTED_COLUMNS.items():
        for row_id, *texts in execute(url, f"SELECT {', '.join(columns)} FROM {table}"):  # noqa: S608
            if not ids or row_id in ids:
                size += ROW + sum(len(text) for text in texts)
    return size


WRITES: dict[str, Callable[[Transaction], Any]] = {
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
    "maintenance.evict_oldest": lambda tx: tx.maintenance.evict_oldest(0),
} | {
    name: lambda tx, operation=operation: operation(tx, "ann")
    for name, (operation, _) in OWNED.items()
}
# methods that change no counted row, or that `test_lifecycle` tests
NOT_COUNTED = {
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


def test_updating_a_completion_updates_its_size(url: str) -> None:
    async def update(store: Store, completion: str) -> bool:
        return await store.write(lambda tx: tx.completions.update("ann", completion, b'{"a":1}'))

    async def scenario(store: Store) -> None:
        for n in range(10):
            await add_completion(store, make_completion(f"{n}", created=n, messages=b"x" * 1000))
            assert await update(store, f"{n}")
        strict = await open_store(url, StoreLimits(size=5 * (ROW + 1007), ttl=1e10))
        assert await strict.sweep() == SweepCounts(evicted=5)
        await strict.aclose()

    run_scenario(url, scenario)


def test_listing_completions_reads_no_messages(url: str) -> None:
    async def list_page(store: Store, after: str) -> list[tuple[str, bytes]]:
        return await store.read(
            lambda tx: tx.completions.list_page("ann", after=after, limit=1, newest_first=False)
        )

    async def scenario(store: Store) -> None:
        for completion in ("a", "b", "c"):
            await add_completion(store, make_completion(completion, body=completion.encode()))
        execute(url, "ALTER TABLE completions RENAME COLUMN messages TO unread")
        assert await list_page(store, "a") == [("b", b"b")]
        with pytest.raises(BadRequest):
            await list_page(store, "x")

    run_scenario(url, scenario)


def test_closing_a_store_fails_its_running_responses(url: str) -> None:
    async def before(store: Store) -> None:
        for n in range(25):
            await add_response(store, make_response(f"r{n}", body=b"%d" % n))
        await update_response(store, "ann", "r0", "completed", b"whole")

    async def after(store: Store) -> None:
        for n in range(25):
            row = await get_response(store, "ann", f"r{n}")
            assert row is not None
            expected = ("failed", fail_body(b"%d" % n)) if n else ("completed", b"whole")
            assert (row.status, row.body) == expected

    run_scenario(url, before)
    run_scenario(url, after)
