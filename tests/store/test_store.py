"""The store keeps what it is given, for its owner alone, and ends nothing twice."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
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
from dragoman.store.store import Store
from tests.support.stores import KINDS, NOW

STATES: tuple[Status, ...] = get_args(Status)
ENDS = [state for state in STATES if state not in RUNNING]
ODD = ["", "%", "%0000", "a\0b", "\ud800", "ünï 🦜", "x" * 512, "'; DROP TABLE responses; --"]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with create_database(request.param, tmp_path) as made:
        yield made


def talk(name: str, owner: str = "ann", metadata: bytes = b"{}") -> StoredConversation:
    return StoredConversation(id=name, owner=owner, created=5, metadata=metadata)


def entries(*names: str) -> list[StoredItem]:
    return [StoredItem(name, name.encode()) for name in names]


async def names(store: Store, conversation: str = "c", **page: Any) -> list[str] | None:
    asked = {"after": None, "limit": 1000, "newest_first": False} | page
    found = await store.read(lambda tx: tx.conversations.list_items("ann", conversation, **asked))
    return None if found is None else [entry.id for entry in found]


# owners

Asked = Callable[[Store, str], Awaitable[Any]]
# every method that names an owner: how it is asked, and what a stranger learns
OWNED: dict[str, tuple[Asked, Any]] = {
    "get": (lambda s, who: s.get(who, "r"), None),
    "update": (lambda s, who: s.update(who, "r", "in_progress", b"new"), False),
    "finish_turn": (lambda s, who: s.finish_turn(who, "r", "completed", b"new"), False),
    "history": (lambda s, who: s.history(who, "r"), None),
    "holders": (lambda s, who: s.holders(who, ["i0"]), []),
    "last_frame": (lambda s, who: s.last_frame(who, "r"), None),
    "frames": (lambda s, who: s.frames(who, "r", -1), []),
    "ask_cancel": (lambda s, who: s.ask_cancel(who, "r"), False),
    "delete": (lambda s, who: s.delete(who, "r"), False),
    "get_conversation": (lambda s, who: s.get_conversation(who, "c"), None),
    "update_conversation": (lambda s, who: s.update_conversation(who, "c", b"[]"), None),
    "delete_conversation": (lambda s, who: s.delete_conversation(who, "c"), False),
    "responses_of": (lambda s, who: s.responses_of(who, "c"), []),
    "add_items": (lambda s, who: s.add_items(who, "c", [StoredItem("i2", b"2")]), False),
    "items": (
        lambda s, who: s.items(who, "c", after=None, limit=9, newest_first=False),
        None,
    ),
    "items_named": (lambda s, who: s.items_named(who, "c", ["i"]), {}),
    "item": (lambda s, who: s.item(who, "c", "i"), None),
    "delete_item": (lambda s, who: s.delete_item(who, "c", "i"), False),
    "recall": (lambda s, who: s.recall(who, ["k"]), []),
    "get_completion": (lambda s, who: s.get_completion(who, "chat"), None),
    "change_completion": (lambda s, who: s.change_completion(who, "chat", b"new"), False),
    "delete_completion": (lambda s, who: s.delete_completion(who, "chat"), False),
    "completions": (
        lambda s, who: s.completions(who, after=None, limit=9, newest_first=False),
        [],
    ),
}
# those that a row or the server itself speaks through
OTHERS = {"open", "aclose", "add", "append", "cancels", "add_conversation", "secret", "sweep"}
OTHERS |= {"remember", "add_completion"}


async def furnish(store: Store) -> None:
    await add_response(
        store, make_response("r", conversation="c"), [StoredItem("i0", b"0", is_output=True)]
    )
    await append_frames(store, "r", [(0, b"zero")])
    await add_conversation(store, talk("c"), entries("i"))
    await put_turns(store, "ann", [StoredTurn("k", "m", b"said")])
    await add_completion(store, StoredCompletion(id="chat", owner="ann", created=NOW, body=b"{}"))


def test_every_method_is_tried_with_a_stranger() -> None:
    public = {name for name, _ in inspect.getmembers(Store, callable) if name[0] != "_"}
    assert public == set(OWNED) | OTHERS
    asking = {
        name for name in public if "owner" in inspect.signature(getattr(Store, name)).parameters
    }
    assert asking - {"remember"} == set(OWNED)


@pytest.mark.parametrize("method", OWNED)
def test_what_belongs_to_another_is_not_there(url: str, method: str) -> None:
    ask, nothing = OWNED[method]

    async def state(store: Store) -> list[Any]:
        return [
            await get_response(store, "ann", "r"),
            await list_frames(store, "ann", "r", -1),
            await store.read(lambda tx: tx.conversations.get("ann", "c")),
            await store.read(
                lambda tx: tx.conversations.list_items(
                    "ann", "c", after=None, limit=9, newest_first=False
                )
            ),
            await get_turns(store, "ann", ["k"]),
            await store.read(lambda tx: tx.responses.list_cancel_requests(["r"])),
        ]

    async def scenario(store: Store) -> None:
        await furnish(store)
        before = await state(store)
        for stranger in ("bob", "", "ANN", "ann\0", "ann%", "an_"):
            assert await ask(store, stranger) == nothing
        assert await state(store) == before
        assert await ask(store, "ann") != nothing

    run_scenario(url, scenario)


def test_owners_may_remember_under_the_same_key(url: str) -> None:
    async def scenario(store: Store) -> None:
        for who in ("ann", "bob", ""):
            await put_turns(store, who, [StoredTurn("k", "m", who.encode())])
        for who in ("ann", "bob", ""):
            assert await get_turns(store, who, ["k"]) == [StoredTurn("k", "m", who.encode())]

    run_scenario(url, scenario)


# responses


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_a_response_comes_out_as_it_went_in(tmp_path: Path, odd: str, state: Status) -> None:
    row = StoredResponse(
        id=odd,
        owner=odd,
        status=state,
        created=2**40,
        body=bytes(range(256)),
        input=b"",
        previous=odd,
        conversation=odd,
        background=state == "queued",
    )

    async def scenario(store: Store) -> None:
        await add_response(store, row)
        assert await get_response(store, odd, odd) == row

    run_scenario("sqlite://", scenario)


def test_odd_names_are_kept_apart(url: str) -> None:
    async def scenario(store: Store) -> None:
        for name in ODD:
            await add_response(
                store, make_response(name, owner=name, body=name.encode("utf-8", "surrogatepass"))
            )
            await put_turns(store, name, [StoredTurn(name, name, b"1")])
        for name in ODD:
            found = await get_response(store, name, name)
            assert found is not None
            assert found.body == name.encode("utf-8", "surrogatepass")
            assert await get_turns(store, name, ODD) == [StoredTurn(name, name, b"1")]

    run_scenario(url, scenario)


def test_an_id_is_given_once(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        for who in ("ann", "bob"):
            with pytest.raises(StoreError):
                await add_response(store, make_response("r", owner=who, body=b"other"))
        assert await get_response(store, "ann", "r") == make_response("r")

    run_scenario(url, scenario)


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_end(url: str, end: Status) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r", status="queued"))
        assert await update_response(store, "ann", "r", "in_progress", b"1")
        assert await append_frames(store, "r", [(0, b"first")])
        assert await finish_response(store, "r", end, b"2", frames=[(1, b"last")])
        for state in STATES:
            assert not await update_response(store, "ann", "r", state, b"3")
            assert not await finish_response(store, "r", state, b"3", frames=[(2, b"more")])
        assert not await append_frames(store, "r", [(2, b"more")])
        assert not await store.write(lambda tx: tx.responses.request_cancel("ann", "r"))
        await store.sweep()
        found = await get_response(store, "ann", "r")
        assert found is not None
        assert (found.status, found.body) == (end, b"2")
        assert await list_frames(store, "ann", "r", -1) == [(0, b"first"), (1, b"last")]

    run_scenario(url, scenario)


def test_of_many_ends_one_wins(url: str) -> None:
    """Two stores end the same responses in every way at once."""

    async def scenario(*stores: Store) -> None:
        for turn in range(5):
            await add_response(stores[0], make_response(f"r{turn}"))
            tries = [(store, end) for store in stores for end in ENDS]
            won = await asyncio.gather(
                *(
                    finish_response(store, f"r{turn}", end, b"%d" % place, frames=[(place, b"end")])
                    for place, (store, end) in enumerate(tries)
                )
            )
            assert sum(won) == 1
            place = won.index(True)
            found = await get_response(stores[1], "ann", f"r{turn}")
            assert found is not None
            assert (found.status, found.body) == (tries[place][1], b"%d" % place)
            assert await list_frames(stores[1], "ann", f"r{turn}", -1) == [(place, b"end")]

    run_scenario(url, scenario, stores=2)


def test_deleting_takes_the_events_along(url: str) -> None:
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


def test_events_are_kept_once_and_read_in_order(url: str) -> None:
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
BROKEN: dict[str, tuple[dict[str, str | None], str]] = {
    "a link is gone": ({"b": "a", "c": "b"}, "the beginning of its chain has expired"),
    "a link of another": ({"other's": None, "c": "other's"}, "the beginning of its chain"),
    "a circle": ({"b": "c", "c": "b"}, "more than 10,000"),
}


async def link(store: Store, links: dict[str, str | None]) -> None:
    """Responses, each with the one that it follows."""
    for name, previous in links.items():
        owner = "bob" if name == "other's" else "ann"
        await add_response(store, make_response(name, owner=owner, previous=previous))


@pytest.mark.parametrize("case", CHAINS)
def test_history_is_the_whole_chain_or_nothing(url: str, case: str) -> None:
    links, expected = CHAINS[case]

    async def scenario(store: Store) -> None:
        await link(store, links)
        last = "nowhere" if case == "no such response" else list(links)[-1]
        found = await get_history(store, "ann", last)
        assert (None if found is None else [row.id for row in found]) == expected

    run_scenario(url, scenario)


@pytest.mark.parametrize("case", BROKEN)
def test_a_chain_that_lost_a_link_is_no_missing_response(url: str, case: str) -> None:
    links, why = BROKEN[case]

    async def scenario(store: Store) -> None:
        await link(store, links)
        with pytest.raises(BadRequest, match=why) as caught:
            await get_history(store, "ann", "c")
        assert caught.value.param == "previous_response_id"

    run_scenario(url, scenario)


def test_a_long_history_comes_in_order(url: str) -> None:
    async def scenario(store: Store) -> None:
        for turn in range(60):
            previous = f"r{turn - 1}" if turn else None
            await add_response(
                store, make_response(f"r{turn}", previous=previous, input=b"%d" % turn)
            )
        found = await get_history(store, "ann", "r59")
        assert found is not None
        assert [row.input for row in found] == [b"%d" % turn for turn in range(60)]

    run_scenario(url, scenario)


def test_another_process_can_ask_for_an_end(url: str) -> None:
    async def scenario(mine: Store, other: Store) -> None:
        for name in ("r", "s"):
            await add_response(mine, make_response(name))
        assert await mine.read(lambda tx: tx.responses.list_cancel_requests(["r", "s"])) == set()
        assert await other.write(lambda tx: tx.responses.request_cancel("ann", "r"))
        assert await mine.read(lambda tx: tx.responses.list_cancel_requests(["s"])) == set()
        assert await mine.read(
            lambda tx: tx.responses.list_cancel_requests([*map(str, range(2000)), "s", "r"])
        ) == {"r"}
        assert await mine.read(lambda tx: tx.responses.list_cancel_requests([])) == set()
        assert not await other.write(lambda tx: tx.responses.request_cancel("ann", "nowhere"))

    run_scenario(url, scenario, stores=2)


# conversations


def test_pages_of_items(url: str) -> None:
    async def scenario(store: Store) -> None:
        every = [f"i{place}" for place in range(7)]
        await add_conversation(store, talk("c"), entries(*every[:3]))
        assert await add_items(store, "ann", "c", entries(*every[3:]))
        for newest in (False, True):
            order = every[::-1] if newest else every
            for limit in (1, 3, 100):
                read: list[str] = []
                while page := await names(
                    store, after=read[-1] if read else None, limit=limit, newest_first=newest
                ):
                    assert len(page) <= limit
                    read += page
                assert read == order
        with pytest.raises(BadRequest) as caught:
            await names(store, after="nowhere")
        assert caught.value.param == "after"
        assert await names(store, "nowhere") is None

    run_scenario(url, scenario)


def test_an_item_is_kept_once_and_can_go(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_conversation(store, talk("c"), [*entries("a", "b"), StoredItem("a", b"again")])
        assert await add_items(store, "ann", "c", [StoredItem("a", b"later"), *entries("d")])
        assert await names(store) == ["a", "b", "d"]
        assert await store.read(
            lambda tx: tx.conversations.get_item("ann", "c", "a")
        ) == StoredItem("a", b"a")
        assert await store.write(lambda tx: tx.conversations.delete_item("ann", "c", "d"))
        assert not await store.write(lambda tx: tx.conversations.delete_item("ann", "c", "d"))
        assert await store.read(lambda tx: tx.conversations.get_item("ann", "c", "d")) is None
        await add_items(store, "ann", "c", entries("e"))
        assert await names(store) == ["a", "b", "e"]

    run_scenario(url, scenario)


def test_a_conversation_changes_and_goes(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_conversation(store, talk("c", metadata=b'{"a":1}'), entries("a"))
        assert await store.read(lambda tx: tx.conversations.get("ann", "c")) == talk(
            "c", metadata=b'{"a":1}'
        )
        changed = talk("c", metadata=b'{"b":2}')
        assert (
            await store.write(lambda tx: tx.conversations.update("ann", "c", b'{"b":2}')) == changed
        )
        assert await store.read(lambda tx: tx.conversations.get("ann", "c")) == changed
        with pytest.raises(StoreError):
            await add_conversation(store, talk("c"), entries("b"))
        assert await store.write(lambda tx: tx.delete_conversation("ann", "c"))
        assert await store.read(lambda tx: tx.conversations.get("ann", "c")) is None
        assert await names(store) is None
        assert not await add_items(store, "ann", "c", entries("b"))
        await add_conversation(store, talk("c"))
        assert await names(store) == []

    run_scenario(url, scenario)


def test_items_of_two_writers_do_not_collide(url: str) -> None:
    async def scenario(*stores: Store) -> None:
        await add_conversation(stores[0], talk("c"))
        pairs = [
            (store, f"{place}-{turn}") for turn in range(8) for place, store in enumerate(stores)
        ]
        done = await asyncio.gather(
            *(add_items(store, "ann", "c", entries(name, name + "+")) for store, name in pairs)
        )
        assert all(done)
        found = await names(stores[0])
        assert found is not None
        assert sorted(found) == sorted(part for _, name in pairs for part in (name, name + "+"))
        assert all(
            second == first + "+" for first, second in zip(found[::2], found[1::2], strict=True)
        )

    run_scenario(url, scenario, stores=2)


def test_a_turn_ends_with_its_items_or_not_at_all(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_conversation(store, talk("c"))
        await add_response(store, make_response("r", conversation="c"))
        assert await finish_response(store, "r", "completed", b"1", entries("a", "b"))
        assert not await finish_response(store, "r", "completed", b"2", entries("x"))
        assert await names(store) == ["a", "b"]
        await add_response(store, make_response("alone"))
        assert await finish_response(store, "alone", "completed", b"1", entries("x"))
        await add_response(store, make_response("late", conversation="c"))
        await store.write(lambda tx: tx.delete_conversation("ann", "c"))
        assert await finish_response(store, "late", "completed", b"1", entries("y"))
        found = await get_response(store, "ann", "late")
        assert found is not None
        assert found.status == "completed"

    run_scenario(url, scenario)


# small things


def test_a_secret_is_made_once(url: str) -> None:
    async def scenario(*stores: Store) -> set[bytes]:
        asked = [get_secret(store, "seal") for store in stores for _ in range(5)]
        found = set(await asyncio.gather(*asked))
        assert [len(secret) for secret in found] == [32]
        assert len(await get_secret(stores[0], "other", 8)) == 8
        return found

    assert run_scenario(url, scenario, stores=3) == run_scenario(url, scenario, stores=1)


def test_the_newest_memory_of_a_key_stays(url: str) -> None:
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


def test_what_is_too_large_is_refused(url: str) -> None:
    big = b"x" * 101
    item, body, frame = [StoredItem("i", big)], big, [(9, big)]

    async def scenario(store: Store) -> None:
        await furnish(store)
        for refused in (
            add_response(store, make_response("s", body=b"x" * 51, input=b"x" * 50)),
            update_response(store, "ann", "r", "completed", body),
            finish_response(store, "r", "completed", body),
            finish_response(store, "r", "completed", b"", item),
            finish_response(store, "r", "completed", b"", frames=frame),
            append_frames(store, "r", frame),
            add_conversation(store, talk("d", metadata=big)),
            add_conversation(store, talk("d"), item),
            store.write(lambda tx: tx.conversations.update("ann", "c", big)),
            add_items(store, "ann", "c", item),
            put_turns(store, "ann", [StoredTurn("k", "m", big)]),
            add_response(store, make_response("n" * 513)),
            add_items(store, "ann", "c", [StoredItem("n" * 513, b"")]),
        ):
            with pytest.raises(TooLarge):
                await refused
        found = await get_response(store, "ann", "r")
        assert found is not None
        assert found.status == "in_progress"
        assert await get_response(store, "ann", "s") is None
        await add_response(store, make_response("s", body=b"x" * 50, input=b"x" * 50))

    run_scenario(url, scenario, StoreLimits(row=100))


def test_what_is_old_goes(url: str) -> None:
    old, now = int(time.time()) - 1000, int(time.time())

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("old", created=old, status="completed"))
        await append_frames(store, "old", [(0, b"")])
        await add_response(store, make_response("runs", created=old))
        await add_response(store, make_response("new", created=now, status="completed"))
        await add_completion(
            store, StoredCompletion(id="kept", owner="ann", created=old, body=b"{}")
        )
        for who in ("old", "new"):
            await add_conversation(store, talk(who), entries("a"))
            await put_turns(store, "ann", [StoredTurn(who, "m", b"1")])
        for table in ("responses", "conversations", "memories"):
            where = "key" if table == "memories" else "id"
            execute(url, f"UPDATE {table} SET touched = {old} WHERE {where} <> 'new'")  # noqa: S608
        assert await store.sweep() == SweepCounts(expired=4)
        assert await store.sweep() == SweepCounts()
        rows = {name: await get_response(store, "ann", name) for name in ("old", "runs", "new")}
        assert [name for name, row in rows.items() if row] == ["runs", "new"]
        assert [await names(store, name) for name in ("old", "new")] == [None, ["a"]]
        assert await get_turns(store, "ann", ["old", "new"]) == [StoredTurn("new", "m", b"1")]

    run_scenario(url, scenario, StoreLimits(ttl=500))


def test_what_is_too_much_goes_oldest_first(url: str) -> None:
    async def scenario(store: Store) -> None:
        now = int(time.time())
        await add_response(store, make_response("runs", created=now - 5000, body=b"x" * 300))
        for age in range(10, 0, -1):
            row = make_response(f"r{age}", created=now - age * 100, body=b"x" * 100, input=b"")
            await add_response(store, row)
            await append_frames(store, row.id, [(0, b"y" * 100)])
            await finish_response(store, row.id, "completed", row.body, frames=[(1, b"z" * 100)])
        await add_conversation(store, talk("c"), entries("a" * 98))
        await put_turns(store, "ann", [StoredTurn("k", "m", b"x" * 100)])
        execute(url, f"UPDATE conversations SET touched = {now - 550}")  # noqa: S608
        execute(url, f"UPDATE memories SET touched = {now - 850}")  # noqa: S608
        execute(url, "UPDATE responses SET touched = created")
        # 302 run, 3000 in responses, 100 in a conversation, 100 in a memory; and their 45 rows
        assert await store.sweep() == SweepCounts()
        strict = await open_store(url, StoreLimits(size=302 + 1500 + 150 + ROW * (2 + 5 * 4 + 2)))
        assert await strict.sweep() == SweepCounts(evicted=6)
        assert await strict.sweep() == SweepCounts()
        await strict.aclose()
        left = [age for age in range(1, 11) if await get_response(store, "ann", f"r{age}")]
        assert left == [1, 2, 3, 4, 5]
        assert await get_response(store, "ann", "runs") is not None
        assert await names(store) == ["a" * 98]
        assert await get_turns(store, "ann", ["k"]) == []

    run_scenario(url, scenario)


def test_many_go_in_batches(url: str) -> None:
    async def scenario(store: Store) -> None:
        await put_turns(store, "ann", [StoredTurn(f"{n}", "m", b"x" * 10) for n in range(1000)])
        strict = await open_store(url, StoreLimits(size=100 * (ROW + 10)))
        assert await strict.sweep() == SweepCounts(evicted=900)
        execute(url, "UPDATE memories SET touched = 0")
        assert await strict.sweep() == SweepCounts(expired=100)
        await strict.aclose()

    run_scenario(url, scenario)


def test_a_lot_at_once_is_swept_without_being_asked(url: str) -> None:
    async def scenario(store: Store) -> None:
        for place in range(30):
            await add_response(
                store, make_response(f"r{place}", created=place, body=b"x" * 100, status="failed")
            )

        async def swept() -> bool:
            return await get_response(store, "ann", "r0") is None

        await wait_until(swept)
        assert await get_response(store, "ann", "r29") is not None

    run_scenario(url, scenario, StoreLimits(size=14_000, ttl=1e10))


# chains in use


async def grown(url: str, store: Store) -> None:
    """A chain of two and some others, all old; then the chain is gone on from."""
    old = int(time.time()) - 1000
    for name, previous in {"a": None, "b": "a", "x": None, "y": "x"}.items():
        await add_response(
            store, make_response(name, created=old, status="completed", previous=previous)
        )
    execute(url, f"UPDATE responses SET touched = {old}")  # noqa: S608
    await add_response(store, make_response("c", status="completed", previous="b"))


async def chain(store: Store, last: str) -> list[str] | None:
    found = await get_history(store, "ann", last)
    return None if found is None else [row.id for row in found]


def test_a_chain_in_use_does_not_lose_its_head_to_age(url: str) -> None:
    async def scenario(store: Store) -> None:
        await grown(url, store)
        assert await store.sweep() == SweepCounts(expired=2)
        assert await chain(store, "c") == ["a", "b", "c"]
        assert await chain(store, "y") is None

    run_scenario(url, scenario, StoreLimits(ttl=500))


def test_a_chain_in_use_does_not_lose_its_head_to_size(url: str) -> None:
    async def scenario(store: Store) -> None:
        await grown(url, store)
        strict = await open_store(url, StoreLimits(size=3 * (2 * ROW + 10)))
        assert await strict.sweep() == SweepCounts(evicted=2)
        await strict.aclose()
        assert await chain(store, "c") == ["a", "b", "c"]

    run_scenario(url, scenario)


def test_only_the_owner_keeps_a_chain_in_use(url: str) -> None:
    async def scenario(store: Store) -> None:
        await grown(url, store)
        await add_response(store, make_response("z", owner="bob", previous="y"))
        assert await store.sweep() == SweepCounts(expired=2)

    run_scenario(url, scenario, StoreLimits(ttl=500))


def test_many_may_go_on_from_one_chain_at_once(url: str) -> None:
    async def scenario(*stores: Store) -> None:
        for turn in range(40):
            await add_response(
                stores[0], make_response(f"r{turn}", previous=f"r{turn - 1}" if turn else None)
            )
        forks = [(store, f"{at}-{n}", n) for n in range(40) for at, store in enumerate(stores)]
        await asyncio.gather(
            *(
                add_response(store, make_response(name, previous=f"r{n}"))
                for store, name, n in forks
            )
        )
        for store, name, n in forks:
            assert await chain(store, name) == [*(f"r{turn}" for turn in range(n + 1)), name]

    run_scenario(url, scenario, stores=3)


# what was said goes with what said it

SAID = {
    "delete": lambda s: s.delete("ann", "r"),
    "delete_completion": lambda s: s.delete_completion("ann", "chat"),
    "delete_conversation": lambda s: s.delete_conversation("ann", "c"),
}


async def speak(store: Store) -> None:
    await furnish(store)
    for source in ("r", "chat", "other"):
        rows = [StoredTurn(f"{source}{at}", "m", b"said", source) for at in range(3)]
        await put_turns(store, "ann", rows)
    await put_turns(store, "bob", [StoredTurn("k", "m", b"said", "r")])


async def spoken(store: Store) -> set[str | None]:
    names = [f"{source}{at}" for source in ("r", "chat", "other") for at in range(3)]
    return {row.source for row in await get_turns(store, "ann", ["k", *names])}


@pytest.mark.parametrize("method", SAID)
def test_what_is_deleted_is_not_remembered(url: str, method: str) -> None:
    gone = "chat" if method == "delete_completion" else "r"

    async def scenario(store: Store) -> None:
        await speak(store)
        assert await SAID[method](store)
        assert await spoken(store) == {None, "r", "chat", "other"} - {gone}
        assert len(await get_turns(store, "bob", ["k"])) == 1

    run_scenario(url, scenario)


@pytest.mark.parametrize("why", ["age", "size"])
def test_what_is_swept_is_not_remembered(url: str, why: str) -> None:
    async def scenario(store: Store) -> None:
        await speak(store)
        await update_response(store, "ann", "r", "completed", b"")
        execute(url, "UPDATE responses SET touched = touched - 1000")
        execute(url, "UPDATE completions SET created = created - 1000")
        limits = StoreLimits(ttl=500)
        if why == "size":  # as much as there will be, so that nothing else has to go
            left = counted(url) - weighed(url, "r", "chat")
            limits = StoreLimits(size=left)
        strict = await open_store(url, limits)
        swept = await strict.sweep()
        assert swept == (SweepCounts(expired=2) if why == "age" else SweepCounts(evicted=2))
        await strict.aclose()
        assert await spoken(store) == {None, "other"}

    run_scenario(url, scenario)


def test_the_last_to_say_something_is_its_source(url: str) -> None:
    async def scenario(store: Store) -> None:
        for source in ("a", "b"):
            await put_turns(store, "ann", [StoredTurn("k", "m", b"said", source)])
        await delete_response(store, "ann", "a")
        assert await get_turns(store, "ann", ["k"]) == [StoredTurn("k", "m", b"said", "b")]

    run_scenario(url, scenario)


# what is counted

TEXTS = {
    "responses": ("id",),
    "bodies": ("response", "body", "input"),
    "frames": ("response", "data"),
    "holders": ("response",),
    "conversations": ("id", "metadata"),
    "items": ("conversation", "body"),
    "completions": ("id", "body", "messages"),
    "memories": ("source", "data"),
}


def counted(url: str) -> int:
    tables = ("responses", "conversations", "completions", "memories")
    asked = "SELECT coalesce(sum(size), 0) FROM "
    return sum(int(execute(url, asked + table)[0][0]) for table in tables)


def weighed(url: str, *names: str) -> int:
    """The bytes of all rows, or of those that belong to these, each with what a row takes."""
    size = 0
    for table, (whose, *texts) in TEXTS.items():
        for name, *found in execute(url, f"SELECT {', '.join([whose, *texts])} FROM {table}"):  # noqa: S608
            if not names or name in names:
                size += ROW + sum(len(data) for data in found)
    return size


WRITES: dict[str, Callable[[Store], Awaitable[Any]]] = {
    "add": lambda s: s.add(
        make_response("new", previous="r", conversation="c"),
        [StoredItem("i0", b"00", is_output=True), StoredItem("i3", b"three", answered=True)],
    ),
    "append": lambda s: s.append("r", [(0, b"again"), (1, b"one"), (1, b"two"), (2, b"")]),
    "add_conversation": lambda s: s.add_conversation(talk("d"), entries("x", "y", "x")),
    "remember": lambda s: s.remember(
        "ann", [StoredTurn("k", "m", b"more"), StoredTurn("l", "m", b"")]
    ),
    "add_completion": lambda s: s.add_completion(
        StoredCompletion(id="other", owner="ann", created=NOW, body=b"{}", messages=b"[1]")
    ),
    "sweep": lambda s: s.sweep(),
    "secret": lambda s: s.secret("seal"),
    "update, longer": lambda s: s.update("ann", "r", "in_progress", b"x" * 99),
    "update, the end": lambda s: s.update("ann", "r", "failed", b""),
    "finish_turn, with all": lambda s: s.finish_turn(
        "ann",
        "r",
        "completed",
        b"12",
        [StoredItem("i9", b"9", is_output=True)],
        [(0, b"0"), (9, b"9")],
    ),
    "add_items, some known": lambda s: s.add_items("ann", "c", entries("i", "j", "j")),
} | {name: lambda s, ask=ask: ask(s, "ann") for name, (ask, _) in OWNED.items()}


def test_every_method_is_weighed() -> None:
    public = {name for name, _ in inspect.getmembers(Store, callable) if name[0] != "_"}
    assert public - set(WRITES) == {"open", "aclose", "cancels"}


@pytest.mark.parametrize("write", WRITES)
def test_what_is_counted_is_what_is_there(url: str, write: str) -> None:
    async def scenario(store: Store) -> None:
        await furnish(store)
        assert counted(url) == weighed(url) > 8 * ROW
        await WRITES[write](store)
        assert counted(url) == weighed(url)

    run_scenario(url, scenario)
    assert counted(url) == weighed(url)  # what ran has failed


def test_changing_a_kept_completion_keeps_it_counted(url: str) -> None:
    async def scenario(store: Store) -> None:
        for name in range(10):
            kept = StoredCompletion(
                id=f"{name}", owner="ann", created=name, body=b"{}", messages=b"x" * 1000
            )
            await add_completion(store, kept)
            assert await store.write(lambda tx: tx.completions.update("ann", f"{name}", b'{"a":1}'))
        strict = await open_store(url, StoreLimits(size=5 * (ROW + 1007), ttl=1e10))
        assert await strict.sweep() == SweepCounts(evicted=5)
        await strict.aclose()

    run_scenario(url, scenario)


def test_a_list_of_completions_reads_no_messages(url: str) -> None:
    async def scenario(store: Store) -> None:
        for name in ("a", "b", "c"):
            await add_completion(
                store, StoredCompletion(id=name, owner="ann", created=NOW, body=name.encode())
            )
        execute(url, "ALTER TABLE completions RENAME COLUMN messages TO unread")
        found = await store.read(
            lambda tx: tx.completions.list_page("ann", after="a", limit=1, newest_first=False)
        )
        assert found == [("b", b"b")]
        with pytest.raises(BadRequest):
            await store.read(
                lambda tx: tx.completions.list_page("ann", after="x", limit=1, newest_first=False)
            )

    run_scenario(url, scenario)


def test_a_body_comes_back_rewritten_when_its_server_left(url: str) -> None:
    async def before(store: Store) -> None:
        for place in range(25):
            await add_response(store, make_response(f"r{place}", body=b"%d" % place))
        await update_response(store, "ann", "r0", "completed", b"whole")

    async def after(store: Store) -> None:
        for place in range(25):
            found = await get_response(store, "ann", f"r{place}")
            assert found is not None
            ended = (found.status, found.body)
            assert ended == (
                ("failed", fail_body(b"%d" % place)) if place else ("completed", b"whole")
            )

    run_scenario(url, before)
    run_scenario(url, after)
