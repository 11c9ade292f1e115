"""Quotas: an owner that stores too much loses its own oldest rows, and nobody else's."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import TooLarge
from dragoman.store.maintenance.repository import find_excess
from dragoman.store.rows import ROW, StoredTurn, StoreLimits
from dragoman.store.store import Store
from dragoman.types import KeyLimits
from tests.support.stores import (
    add_completion,
    add_conversation,
    add_response,
    execute,
    get_response,
    get_turns,
    make_completion,
    make_conversation,
    make_items,
    make_response,
    put_turns,
    run_scenario,
    wait_until,
)

sizes = st.dictionaries(st.text(max_size=2), st.integers(0, 10_000), max_size=8)
quotas = st.dictionaries(st.text(max_size=2), st.integers(0, 5_000), max_size=8)


@given(sizes, quotas, st.integers(0, 30_000))
def test_only_owners_above_their_share_or_quota_lose_rows(
    stored: dict[str, int], quota: dict[str, int], size: int
) -> None:
    limits = StoreLimits(
        size=size, find_limits=lambda owner: KeyLimits(stored_bytes=quota.get(owner))
    )
    excess = find_excess(Counter(stored), limits)
    left = {owner: count - excess.get(owner, 0) for owner, count in stored.items()}
    within_quota = {owner: min(count, quota.get(owner, count)) for owner, count in stored.items()}
    assert sum(left.values()) <= size
    assert all(excess.values())
    for owner, count in left.items():
        assert 0 <= count <= within_quota[owner]
        if within_quota[owner] <= size // len(stored):  # an equal share
            assert count == within_quota[owner]
    if sum(within_quota.values()) <= size:
        assert left == within_quota
    else:  # no more is deleted than necessary; a few bytes cannot be divided
        assert sum(left.values()) > size - len(stored)


def make_rows(owner: str, number: int) -> list[str]:
    return [f"{owner}{number}-{kind}" for kind in range(4)]


async def write_rows(store: Store, owner: str, number: int) -> None:
    """Write one row of each kind."""
    response, completion, conversation, turn = make_rows(owner, number)
    body = b"x" * 2000
    await add_response(store, make_response(response, owner, body=body, status="completed"))
    await add_completion(store, make_completion(completion, owner=owner, body=body))
    await add_conversation(store, make_conversation(conversation, owner=owner), make_items("a"))
    await put_turns(store, owner, [StoredTurn(turn, "m", body)])


async def count_rows(store: Store, owner: str, number: int) -> int:
    response, completion, conversation, turn = make_rows(owner, number)
    found = [
        await get_response(store, owner, response),
        await store.read(lambda tx: tx.completions.get(owner, completion)),
        await store.read(lambda tx: tx.conversations.get(owner, conversation)),
        *await get_turns(store, owner, [turn]),
    ]
    return len([row for row in found if row is not None])


@pytest.mark.slow
def test_one_owners_writes_evict_nothing_of_another(url: str) -> None:
    async def scenario(store: Store) -> None:
        await write_rows(store, "ann", 0)
        for table in ("responses", "conversations", "memories"):  # the oldest rows of all
            execute(url, f"UPDATE {table} SET touched = 1")  # noqa: S608
        execute(url, "UPDATE completions SET created = 1")
        for number in range(30):
            await write_rows(store, "bob", number)
        await store.sweep()
        assert await count_rows(store, "ann", 0) == 4
        assert await count_rows(store, "bob", 0) == 0
        assert await count_rows(store, "bob", 29) > 0

    run_scenario(url, scenario, StoreLimits(size=60_000, ttl=1e12))


@pytest.mark.slow
def test_an_owner_above_its_quota_loses_its_own_oldest_rows(url: str) -> None:
    quota = 20 * (ROW + 100)
    limits = StoreLimits(
        find_limits=lambda owner: KeyLimits(stored_bytes=quota if owner == "ann" else None)
    )

    async def scenario(store: Store) -> None:
        async def is_first_gone() -> bool:
            return not await get_turns(store, "ann", ["0"])

        for number in range(40):
            for owner in ("ann", "bob"):
                await put_turns(store, owner, [StoredTurn(str(number), "m", b"x" * 100)])
        await asyncio.wait_for(wait_until(is_first_gone), 20)  # a sweep starts by itself
        await store.sweep()
        keys = [str(number) for number in range(40)]
        assert [turn.key for turn in await get_turns(store, "ann", keys)] == keys[20:]
        assert len(await get_turns(store, "bob", keys)) == 40
        with pytest.raises(TooLarge, match=f"{quota:,} may be stored"):
            await put_turns(store, "ann", [StoredTurn("big", "m", b"x" * (quota + 1))])

    run_scenario(url, scenario, limits)
