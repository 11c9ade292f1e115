"""Responses and their events: returned unchanged, ended once, continued in chains."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from dragoman.errors import BadRequest
from dragoman.store.rows import RUNNING, Status, StoredResponse, StoredTurn, StoreError
from dragoman.store.store import Store
from tests.support.stores import (
    add_response,
    append_frames,
    delete_response,
    fail_body,
    finish_response,
    get_history,
    get_response,
    get_turns,
    list_frames,
    list_history,
    make_response,
    put_turns,
    run_scenario,
    update_response,
)

pytestmark = pytest.mark.slow

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
    "a link of another owner": ({"other's": None, "c": "other's"}, "the beginning of its history"),
    "a circle": ({"b": "c", "c": "b"}, "more than 10,000"),
}


async def add_chain(store: Store, links: dict[str, str | None]) -> None:
    """Add responses, each with the one that it continues."""
    for name, previous in links.items():
        owner = "bob" if name == "other's" else "ann"
        await add_response(store, make_response(name, owner=owner, previous=previous))


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
