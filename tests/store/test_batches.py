"""Files and batches in the store: leases, results that count once, expiry and eviction."""

from __future__ import annotations

from collections import Counter

import pytest

from dragoman.errors import FileInUse
from dragoman.events import Usage
from dragoman.store.batches.rows import LeaseLost, LineResult, StoredBatch
from dragoman.store.rows import Page, StoreLimits, SweepCounts
from dragoman.store.store import Store
from tests.support.stores import (
    NOW,
    add_batch,
    add_file,
    execute,
    make_batch,
    make_file,
    open_store,
    run_scenario,
)

NOBODY: Counter[str] = Counter()


async def claim(store: Store, counts: Counter[str] = NOBODY, most: int = 9) -> list[str]:
    return [batch.id for batch in await store.write(lambda tx: tx.claim_batches(counts, most))]


async def get(store: Store, batch: str = "b") -> StoredBatch:
    row = await store.read(lambda tx: tx.batches.get("ann", batch))
    assert row is not None
    return row


async def start(store: Store, batch: StoredBatch) -> None:
    await store.write(lambda tx: tx.batches.start(batch, 3, "m", NOW + 1e6))


async def record(store: Store, batch: StoredBatch, *results: LineResult) -> None:
    await store.write(lambda tx: tx.batches.record_results(batch, results))


async def finish(store: Store, batch: StoredBatch) -> None:
    await store.write(lambda tx: tx.batches.finish(batch, "completed", 1e6, None))


async def read_file(store: Store, file: str) -> bytes:
    chunks = await store.read(lambda tx: tx.files.read_chunks(file, -1, 1 << 20))
    return b"".join(data for _, data in chunks)


def test_one_server_runs_a_batch(url: str) -> None:
    async def scenario(first: Store, other: Store) -> None:
        await add_batch(first, make_batch("b"))
        await add_batch(first, make_batch("c", owner="bob", created=NOW + 1))
        assert await claim(first, Counter(bob=1), 1) == ["b"]  # bob has as many as he may
        assert await claim(other) == ["c"]
        assert await claim(first) == await claim(other) == []
        await first.write(lambda tx: tx.batches.release("c"))  # which is not its own
        assert await claim(first) == []
        await first.write(lambda tx: tx.batches.release("b"))
        assert await claim(other) == ["b"]

    run_scenario(url, scenario, stores=2)


def test_another_server_claims_the_batches_of_one_that_is_gone(url: str) -> None:
    """What the first one still writes does not count, whatever it had in progress."""

    async def scenario(first: Store, other: Store) -> None:
        await add_batch(first, make_batch("b"))
        assert await claim(first) == ["b"]
        batch = await get(first)
        await start(first, batch)
        await record(first, batch, LineResult(1, b"one\n"))
        execute(url, "DELETE FROM servers WHERE id = (SELECT server FROM batches)")
        assert await claim(other) == ["b"]
        for late in (record(first, batch, LineResult(2, b"late\n")), finish(first, batch)):
            with pytest.raises(LeaseLost):
                await late
        assert await other.read(lambda tx: tx.batches.list_done(batch)) == {1}
        await record(
            other, batch, LineResult(2, b"two\n"), LineResult(3, b"bad\n", has_failed=True)
        )
        await finish(other, batch)
        assert await read_file(other, "b-out") == b"one\ntwo\n"
        assert await read_file(other, "b-err") == b"bad\n"

    run_scenario(url, scenario, stores=2)


def test_a_line_has_one_result(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_batch(store, make_batch("b"))
        await claim(store)
        batch = await get(store)
        await start(store, batch)
        usage = Usage(prompt=10, completion=3, cached=2, reasoning=1)
        await record(store, batch, LineResult(1, b"one\n", usage=usage))
        await record(store, batch, LineResult(1, b"again\n", has_failed=True, usage=usage))
        await record(store, batch, LineResult(1, b"again\n"), LineResult(2, b"two\n"))
        row = await get(store)
        assert (row.total, row.completed, row.failed) == (3, 2, 0)
        assert (row.prompt_tokens, row.cached_tokens) == (10, 2)
        assert (row.completion_tokens, row.reasoning_tokens) == (3, 1)
        assert await store.read(lambda tx: tx.files.get("ann", "b-out")) is None  # until the end
        await finish(store, batch)
        ended = await get(store)
        assert (ended.status, ended.output_file, ended.error_file) == ("completed", "b-out", None)
        assert await read_file(store, "b-out") == b"one\ntwo\n"
        with pytest.raises(LeaseLost):
            await record(store, batch, LineResult(3, b"three\n"))

    run_scenario(url, scenario)


def test_cancelling_is_a_request(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_batch(store, make_batch("b"))
        await claim(store)
        batch = await get(store)
        await start(store, batch)
        assert await store.write(lambda tx: tx.batches.request_cancel("bob", "b")) is None
        row = await store.write(lambda tx: tx.batches.request_cancel("ann", "b"))
        assert row is not None
        assert (row.status, row.cancelling_at is not None) == ("cancelling", True)
        assert await store.read(lambda tx: tx.batches.list_cancelling(["a", "b"])) == ["b"]
        assert not await store.write(lambda tx: tx.batches.finalize("b"))
        await store.write(lambda tx: tx.batches.finish(batch, "cancelled", 1e6, None))
        row = await store.write(lambda tx: tx.batches.request_cancel("ann", "b"))
        assert row is not None
        assert row.status == "cancelled"

    run_scenario(url, scenario)


def test_what_a_batch_uses_is_not_deleted(url: str) -> None:
    """Its input and its unfinished output survive sweeps; afterwards they are rows like others."""

    async def scenario(store: Store) -> None:
        await add_file(store, make_file("b-in", expires=1.0), [b"in"])
        await add_batch(store, make_batch("b"))
        await claim(store)
        batch = await get(store)
        await start(store, batch)
        await record(store, batch, LineResult(1, b"one\n"))
        strict = await open_store(
            url, StoreLimits(size=0)
        )  # writes nothing, so it sweeps when told
        assert await strict.sweep() == SweepCounts()
        with pytest.raises(FileInUse):
            await store.delete(lambda tx: tx.files.delete("ann", "b-in"))
        assert not await store.delete(lambda tx: tx.files.delete("ann", "b-out"))
        await finish(store, batch)
        assert await strict.sweep() == SweepCounts(expired=1, evicted=2)
        await strict.aclose()
        assert execute(url, "SELECT count(*) FROM chunks") == [(0,)]

    run_scenario(url, scenario)


def test_files_expire_and_unfinished_uploads_are_deleted(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_file(store, make_file("old", expires=1.0), [b"a"])
        await add_file(store, make_file("new"), [b"a"])
        await add_file(store, make_file("stale", expires=1.0), [b"a"], complete=False)
        await add_file(store, make_file("fresh"), [b"a"], complete=False)
        page = Page(limit=9, newest_first=True)
        listed = await store.read(lambda tx: tx.files.list_page("ann", page))
        assert [file.id for file in listed] == ["new"]
        assert await store.sweep() == SweepCounts(expired=2)
        assert execute(url, "SELECT id FROM files ORDER BY id") == [("fresh",), ("new",)]

    run_scenario(url, scenario)


def test_a_large_file_is_deleted_in_pieces(url: str) -> None:
    """In each transaction a few megabytes; it is invisible from the first one on."""

    async def scenario(store: Store) -> None:
        for file in ("f", "g"):
            await add_file(store, make_file(file), [b"a" * 1_000_000] * 5)
        assert await store.delete(lambda tx: tx.files.delete("ann", "f"))
        assert await store.read(lambda tx: tx.files.get("ann", "f")) is None
        assert await store.read(lambda tx: tx.files.sum_bytes("ann")) == 8_000_000
        assert await store.sweep() == SweepCounts(expired=2)  # pieces
        strict = await open_store(url, StoreLimits(size=0))
        assert await strict.sweep() == SweepCounts(evicted=3)
        await strict.aclose()
        assert execute(url, "SELECT count(*) FROM chunks") == [(0,)]

    run_scenario(url, scenario)


def test_content_is_read_in_pieces(url: str) -> None:
    content = [bytes([65 + number]) * (number * 10) for number in range(20)]

    async def scenario(store: Store) -> None:
        await add_file(store, make_file("f"), content)
        after, pieces = -1, []
        while chunks := await read_after(store, after):
            assert len(chunks) == 1 or sum(len(data) for _, data in chunks) <= 100
            after = chunks[-1][0]
            pieces += [data for _, data in chunks]
        assert pieces == content

    async def read_after(store: Store, after: int) -> list[tuple[int, bytes]]:
        return await store.read(lambda tx: tx.files.read_chunks("f", after, 100))

    run_scenario(url, scenario)
