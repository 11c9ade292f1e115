"""Bad URLs, locked files, full disks and lost connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.errors import Unavailable
from dragoman.store.rows import DatabaseLocked, StoreError
from dragoman.store.store import Store
from tests.store.processes import start_python
from tests.support import postgres
from tests.support.stores import (
    POSTGRES,
    add_response,
    delete_response,
    execute,
    get_response,
    make_response,
    open_store,
    run_scenario,
    update_response,
)

BAD_URLS = {
    "mysql://host/name": "must begin with",
    "sqlite+aiosqlite:///x": "must begin with",
    "postgresql+asyncpg://host/name": "must begin with",
    "nonsense": "must begin with",
    "sqlite:///x?cache=shared": "has an unknown option",
    "sqlite:///x?timeout=soon": "number of seconds",
    "sqlite:////proc/nowhere/store.db": "cannot be opened",
    "postgresql://me:hunter2@127.0.0.1:1/name": "cannot be opened|install",
}


@pytest.mark.parametrize("bad_url", BAD_URLS)
def test_the_error_explains_a_bad_url(bad_url: str) -> None:
    with pytest.raises(StoreError, match=BAD_URLS[bad_url]) as caught:
        asyncio.run(open_store(bad_url))
    assert "hunter2" not in str(caught.value)


def test_the_error_names_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'dragoman\[postgres\]'"):
        asyncio.run(open_store("postgresql://host/name"))


def test_only_its_user_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store.db"

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        names = ("store.db", "store.db-wal", "store.db-shm", "store.db-reserve")
        assert modes == dict.fromkeys(names, 0o600)
        assert [parent.stat().st_mode & 0o777 for parent in path.parents[:2]] == [0o700, 0o700]

    umask = os.umask(0o022)
    try:
        run_scenario(f"sqlite:///{path}", scenario)
    finally:
        os.umask(umask)


def test_waiting_for_a_locked_file_does_not_block_the_event_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db?timeout=0.3"
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        holder.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(update_response(store, "ann", "r", "completed", b""))
        iterations = 0
        while not writing.done():
            await asyncio.sleep(0.001)
            iterations += 1
        with pytest.raises(Unavailable) as caught:
            writing.result()
        assert iterations > 20
        assert str(tmp_path) not in caught.value.message
        assert "SQL" not in caught.value.message
        assert await get_response(store, "ann", "r") == make_response("r")  # reads still work
        holder.execute("COMMIT")
        assert await update_response(store, "ann", "r", "completed", b"")

    run_scenario(url, scenario)
    holder.close()


FILL_DISK = """
import asyncio, resource, signal, sys
from dragoman.errors import Unavailable
from tests.support.stores import add_response, get_response, make_response, open_store
async def main(url):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = await open_store(url)
    await add_response(store, make_response("before"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    try:
        for n in range(100):
            await add_response(store, make_response(f"r{n}", body=b"x" * 100_000))
    except Unavailable as error:
        print(error.message)
    print(n, (await get_response(store, "ann", "before")) is not None, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await add_response(store, make_response("after"))
    await store.aclose()
asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with start_python("-c", FILL_DISK, url) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    message, line = out.splitlines()
    count, readable = line.split()
    assert message.startswith("The server")
    assert str(tmp_path) not in message
    assert readable == "True"

    async def scenario(store: Store) -> None:
        for response in ("before", "after", *(f"r{n}" for n in range(int(count)))):
            assert await get_response(store, "ann", response) is not None
        assert await get_response(store, "ann", f"r{count}") is None

    run_scenario(url, scenario)


def test_deleting_rows_shrinks_the_file(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        for n in range(20):
            await add_response(
                store, make_response(f"r{n}", body=b"x" * 100_000, status="completed")
            )
        for n in range(20):
            await delete_response(store, "ann", f"r{n}")
        await store.sweep()

    run_scenario(f"sqlite:///{tmp_path}/store.db", scenario)
    assert (tmp_path / "store.db").stat().st_size < 500_000


def test_a_write_that_fails_in_a_batch_fails_alone(url: str) -> None:
    """Writes that wait for the database are committed together."""

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r5"))
        writes = [add_response(store, make_response(f"r{n}")) for n in range(200)]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [n for n, error in enumerate(results) if error] == [5]
        assert isinstance(results[5], StoreError)
        for n in range(200):
            assert await get_response(store, "ann", f"r{n}") is not None

    run_scenario(url, scenario)


def test_a_file_that_is_no_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"something else" * 100)
    with pytest.raises(StoreError, match="not a database"):
        asyncio.run(open_store(f"sqlite:///{tmp_path}/store.db"))
    assert (tmp_path / "store.db").read_bytes() == b"something else" * 100


def test_a_closed_store_is_unavailable(url: str) -> None:
    async def scenario() -> None:
        store = await open_store(url)
        await store.aclose()
        await store.aclose()
        with pytest.raises(Unavailable):
            await get_response(store, "ann", "r")

    asyncio.run(scenario())


def test_a_cancelled_write_leaves_no_incomplete_row(url: str) -> None:
    async def scenario(store: Store) -> None:
        for n in range(30):
            adding = asyncio.ensure_future(add_response(store, make_response(f"r{n}")))
            await asyncio.sleep(0)
            adding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await adding

    run_scenario(url, scenario)
    rows = execute(url, "SELECT status, body FROM responses LEFT JOIN bodies ON response = id")
    assert {(status, bytes(body)) for status, body in rows} <= {("failed", b'{"id":1}!')}


def test_sqlalchemy_is_imported_only_when_a_store_is_opened() -> None:
    code = "import sys, dragoman.store.store; print({'sqlalchemy', 'psycopg'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n"


@pytest.mark.skipif(not POSTGRES, reason="needs PostgreSQL")
def test_the_store_reconnects_after_a_database_restart() -> None:
    with postgres.start_cluster() as server:

        async def scenario(store: Store) -> None:
            await add_response(store, make_response("r"))
            server.stop()
            for _ in range(3):
                with pytest.raises(Unavailable) as caught:
                    await get_response(store, "ann", "r")
                assert "dragoman-pg" not in caught.value.message
            server.start()
            assert await get_response(store, "ann", "r") == make_response("r")

        run_scenario(server.url, scenario)


@pytest.mark.slow
def test_a_locked_file_fails_fast_and_delays_no_reads(tmp_path: Path) -> None:
    """With one lock timeout for each of the writes, this would take a minute."""
    url = f"sqlite:///{tmp_path}/store.db?timeout=3"
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        holder.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        writes = [
            asyncio.ensure_future(add_response(store, make_response(f"r{n}"))) for n in range(60)
        ]
        reads = [get_response(store, "ann", "r") for _ in range(8)]  # some on new connections
        assert await asyncio.gather(*reads) == [make_response("r")] * 8
        assert not any(write.done() for write in writes)  # the reads did not wait for them
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(result) for result in results} == {DatabaseLocked}
        assert time.monotonic() - started < 20
        holder.execute("COMMIT")
        await add_response(store, make_response("r0"))

    run_scenario(url, scenario)
    holder.close()
