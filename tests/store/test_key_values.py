"""Secrets, and turns of the replay cache."""

from __future__ import annotations

import asyncio

from dragoman.store.rows import StoredTurn
from dragoman.store.store import Store
from tests.support.stores import get_secret, get_turns, put_turns, run_scenario


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
