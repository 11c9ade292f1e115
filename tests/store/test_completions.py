"""Stored chat completions."""

from __future__ import annotations

import pytest

from dragoman.errors import BadRequest
from dragoman.store.rows import ROW, Page, StoreLimits, SweepCounts
from dragoman.store.store import Store
from tests.support.stores import add_completion, execute, make_completion, open_store, run_scenario


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
        page = Page(after=after, limit=1, newest_first=False)
        return await store.read(lambda tx: tx.completions.list_page("ann", page))

    async def scenario(store: Store) -> None:
        for completion in ("a", "b", "c"):
            await add_completion(store, make_completion(completion, body=completion.encode()))
        execute(url, "ALTER TABLE completions RENAME COLUMN messages TO unread")
        assert await list_page(store, "a") == [("b", b"b")]
        with pytest.raises(BadRequest):
            await list_page(store, "x")

    run_scenario(url, scenario)
