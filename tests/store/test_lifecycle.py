"""The store survives killed servers, upgrades, concurrent processes and full disks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

from dragoman.errors import Unavailable
from dragoman.store import migrations
from dragoman.store.database import Database
from dragoman.store.rows import (
    ROW,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoreError,
    SweepCounts,
)
from dragoman.store.store import Store
from dragoman.store.tables import METADATA
from tests.support import postgres
from tests.support.paths import ROOT
from tests.support.store_worker import make_ending
from tests.support.stores import (
    DATABASES,
    POSTGRES,
    add_conversation,
    add_items,
    add_response,
    create_database,
    delete_response,
    execute,
    fail_body,
    get_history,
    get_response,
    get_secret,
    get_turns,
    list_frames,
    make_response,
    open_store,
    run_scenario,
    update_response,
)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with create_database(request.param, tmp_path) as database:
        yield database


@contextlib.contextmanager
def start_python(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        with process:
            pass


# killed servers


def run_until_killed(url: str, seed: int) -> list[list[Any]]:
    """Run a server, kill it at a random moment, and return what it reported."""
    with start_python("-m", "tests.support.store_worker", url, str(seed)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(random.Random(seed).randint(5, 150))]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [json.loads(line) for line in lines if line.endswith("\n")]


async def check_response(
    store: Store, response: str, reported: dict[str, list[tuple[str, int]]]
) -> None:
    """A response is as it was acknowledged, or as the write in progress would have left it."""
    acknowledged, tried = reported["done"], reported["try"]
    row = await get_response(store, "ann", response)
    if row is None:
        assert not acknowledged
        return
    items, last = make_ending(response)
    numbers = [number for number, _ in await list_frames(store, "ann", response, -1)]
    ids = [item.id for item in items]
    stored = await store.read(lambda tx: tx.conversations.get_items("ann", "c", ids))
    version = json.loads(row.body.removesuffix(b"!"))["version"]
    if row.status == "completed":
        assert ("end", 99) in tried
        assert version == 99
        assert numbers[-2:] == [number for number, _ in last]
        assert stored == {item.id: item.body for item in items}
    else:
        assert (row.status, row.body[-1:]) == ("failed", b"!")
        assert ("end", 99) not in acknowledged
        versions = [0, *(number for operation, number in tried if operation == "update")]
        written = [0, *(number for operation, number in acknowledged if operation == "update")]
        assert versions.index(version) >= len(written) - 1
        assert stored == {}
        assert 1000 not in numbers
    for operation, number in acknowledged:
        if operation == "append":
            assert set(range(number * 10, number * 10 + 5)) <= set(numbers)


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_loses_no_acknowledged_write_and_leaves_none_incomplete(url: str, seed: int) -> None:
    reported: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for kind, *values in run_until_killed(url, seed):
        if values:
            response, operation, number = values
            record = reported.setdefault(response, {"try": [], "done": []})
            record[kind].append((operation, number))

    async def scenario(store: Store) -> None:
        for response, record in reported.items():
            await check_response(store, response, record)
        assert execute(url, "SELECT id FROM responses WHERE ended IS NULL") == []
        assert len(execute(url, "SELECT id FROM servers")) == 1

    assert reported
    run_scenario(url, scenario)


RUN_RESPONSE = """
import asyncio, sys
from tests.support.stores import add_response, make_response, open_store
async def main():
    store = await open_store(sys.argv[1])
    await add_response(store, make_response("theirs", body=b"1"))
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_responses_of_a_process_fail_only_after_it_dies(url: str) -> None:
    async def scenario(store: Store) -> None:
        with start_python("-c", RUN_RESPONSE, url) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert await store.sweep() == SweepCounts()
            row = await get_response(store, "ann", "theirs")
            assert row is not None
            assert row.status == "in_progress"
            process.kill()
            exited = os.WEXITED | os.WNOWAIT  # leaves it a zombie
            await asyncio.to_thread(os.waitid, os.P_PID, process.pid, exited)
            assert await store.sweep() == SweepCounts(failed=1)
            row = await get_response(store, "ann", "theirs")
            assert row is not None
            assert (row.status, row.body) == ("failed", fail_body(b"1"))

    run_scenario(url, scenario)


# how the row of a server is changed, and whether the server counts as dead then
SERVERS = {
    "itself": ("", False),
    "no such process": ("pid = 2147483647", True),
    "its pid belongs to another process": ("started = '1'", True),
    "on another host, without heartbeats": ("place = 'boot elsewhere', beat = beat - 61", True),
    "not registered": (None, True),
}


@pytest.mark.parametrize("case", SERVERS)
def test_dead_servers_are_recognised(url: str, case: str) -> None:
    change, dead = SERVERS[case]

    async def scenario(mine: Store, other: Store) -> None:
        await add_response(other, make_response("r", body=b"1"))
        if change is None:
            execute(url, "DELETE FROM servers")
        elif change:
            whose = "WHERE id = (SELECT server FROM responses)"
            execute(url, f"UPDATE servers SET {change} {whose}")  # noqa: S608
        assert await mine.sweep() == SweepCounts(failed=int(dead))
        assert await update_response(other, "ann", "r", "completed", b"2") is not dead
        await add_response(other, make_response("again"))  # registers the server again
        if case == "not registered":
            assert await mine.sweep() == SweepCounts()

    run_scenario(url, scenario, stores=2)


def test_a_server_on_another_host_is_alive_while_its_heartbeat_is_recent(url: str) -> None:
    async def scenario(mine: Store, other: Store) -> None:
        await add_response(other, make_response("r"))
        [[place], _] = execute(url, "SELECT place FROM servers")
        whose = "WHERE id = (SELECT server FROM responses)"
        change = "UPDATE servers SET place = :place, beat = beat - 50 "
        execute(url, change + whose, place=place.split()[0] + " another namespace")
        assert await mine.sweep() == SweepCounts()
        execute(url, f"UPDATE servers SET beat = beat - 50 {whose}")  # noqa: S608
        assert await mine.sweep() == SweepCounts(failed=1)

    run_scenario(url, scenario, stores=2)


def test_a_late_heartbeat_keeps_a_server_from_being_declared_dead(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        execute(url, "UPDATE servers SET place = 'boot elsewhere', beat = beat - 61")
        other = Database(url, connections=1, row_limit=1000)
        [dead] = other.run([lambda tx: tx.servers.list_dead()], write=False)
        execute(url, "UPDATE servers SET beat = beat + 61")
        [failed] = other.run([lambda tx: tx.servers.fail_responses(dead[0], fail_body)], write=True)
        other.close()
        assert (len(dead), failed) == (1, (0, True))
        assert await update_response(store, "ann", "r", "completed", b"2")

    run_scenario(url, scenario)


def test_a_server_that_is_not_registered_keeps_its_own_responses(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        execute(url, "DELETE FROM servers")
        assert await store.sweep() == SweepCounts()
        assert await update_response(store, "ann", "r", "completed", b"2")

    run_scenario(url, scenario)


def test_servers_from_before_a_reboot_are_dead(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario(mine: Store, other: Store) -> None:
        await add_response(other, make_response("r"))
        execute(url, "UPDATE servers SET place = 'then' WHERE id = (SELECT server FROM responses)")
        assert await mine.sweep() == SweepCounts(failed=1)

    run_scenario(url, scenario, stores=2)


def test_a_response_fails_even_if_its_body_cannot_be_rewritten(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_error(_: bytes) -> bytes:
        raise ValueError

    async def scenario() -> StoredResponse | None:
        store = await Store.open(url, fail_body=raise_error)
        await add_response(store, make_response("r", body=b"1"))
        await store.aclose()
        store = await open_store(url)
        row = await get_response(store, "ann", "r")
        await store.aclose()
        return row

    row = asyncio.run(scenario())
    assert row is not None
    assert (row.status, row.body) == ("failed", b"1")
    assert "could not be rewritten" in caplog.text


# concurrent processes

WRITE_CONCURRENTLY = """
import asyncio, sys
from dragoman.store.rows import StoredItem
from tests.support import stores
async def main(url, process):
    store = await stores.open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    secret = await stores.get_secret(store, "key")
    finished = []
    for n in range(20):
        await stores.add_response(store, stores.make_response(f"{process}-{n}"))
        await stores.add_items(store, "ann", "c", [StoredItem(f"{process}-{n}", b"")])
        if await stores.finish_response(store, f"shared-{n}", "completed", process.encode()):
            finished.append(n)
        await stores.finish_response(store, f"{process}-{n}", "completed", b"end")
    print(secret.hex(), *finished, flush=True)
    await store.aclose()
asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_share_a_database(url: str) -> None:
    """They start at once on an empty database, and then race for the same rows."""
    names = ["p", "q", "r"]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(start_python("-c", WRITE_CONCURRENTLY, url, name)) for name in names
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

        async def prepare(store: Store) -> list[tuple[str, str]]:
            await add_conversation(store, StoredConversation(id="c", owner="ann", created=1))
            for n in range(20):
                await add_response(store, make_response(f"shared-{n}"))
            runs = [asyncio.to_thread(process.communicate, "go\n") for process in processes]
            return await asyncio.gather(*runs)

        outputs = run_scenario(url, prepare)
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    lines = [out.split() for out, _ in outputs]
    assert len({secret for secret, *_ in lines}) == 1

    async def scenario(store: Store) -> None:
        items = await store.read(
            lambda tx: tx.conversations.list_items(
                "ann", "c", after=None, limit=100, newest_first=False
            )
        )
        expected = {f"{name}-{n}" for name in names for n in range(20)}
        assert items is not None
        assert len(items) == 60
        assert {item.id for item in items} == expected
        for response in expected:
            row = await get_response(store, "ann", response)
            assert row is not None
            assert (row.status, row.body) == ("completed", b"end")
        for n in range(20):
            row = await get_response(store, "ann", f"shared-{n}")
            assert row is not None
            assert [row.body] == [
                name.encode()
                for name, (_, *finished) in zip(names, lines, strict=True)
                if str(n) in finished
            ]

    run_scenario(url, scenario)


# upgrades


def create_version(url: str, version: int) -> None:
    """Create a database as an older server left it."""
    engine = create_engine(url)
    more = True
    while more:
        with engine.begin() as connection:
            more = migrations.apply_next(connection, version)
    engine.dispose()


def test_an_old_database_is_migrated_with_its_rows(url: str) -> None:
    create_version(url, 1)
    old = "id, owner, status, created, ended, server, background, hidden, cancel, previous"
    for row in (
        "'a', 'ann', 'completed', 10, 11.0, 'old', false, false, false, NULL",
        "'b', 'ann', 'in_progress', 12, NULL, 'old', true, false, false, 'a'",
    ):
        execute(url, f"INSERT INTO responses ({old}) VALUES ({row})")  # noqa: S608
    for name in ("a", "b"):
        execute(
            url,
            "INSERT INTO bodies VALUES (:id, :body, :input)",
            id=name,
            body=b"12345",
            input=b"[]",
        )
        execute(url, "INSERT INTO frames VALUES (:id, 7, :data)", id=name, data=b"seven")
    execute(url, "INSERT INTO secrets VALUES ('key', :data)", data=b"secret")

    async def scenario(store: Store) -> None:
        chain = await get_history(store, "ann", "b")
        assert chain is not None
        assert [(row.id, row.status, row.body, row.conversation) for row in chain] == [
            ("a", "completed", b"12345", None),
            ("b", "failed", b"12345!", None),
        ]
        assert await list_frames(store, "ann", "a", 0) == [(7, b"seven")]
        assert await get_secret(store, "key") == b"secret"
        sizes = execute(url, "SELECT size FROM responses ORDER BY id")
        assert [size for (size,) in sizes] == [3 * ROW + 12, 3 * ROW + 13]  # with body and event
        assert await store.sweep() == SweepCounts(expired=1)  # the other one ended just now

    run_scenario(url, scenario)
    assert execute(url, "SELECT version FROM dragoman") == [(migrations.NEWEST,)]


def test_migrated_rows_have_the_sizes_of_new_ones(url: str) -> None:
    create_version(url, 3)
    for statement in (
        "INSERT INTO responses (id, owner, status, created, ended, server, background, hidden,"
        " cancel, size) VALUES ('r', 'ann', 'completed', 10, 11.0, 'old', false, false, false, 9)",
        "INSERT INTO bodies VALUES ('r', :blob, :blob)",
        "INSERT INTO frames VALUES ('r', 0, :blob)",
        "INSERT INTO holders VALUES ('ann', 'i', 'r')",
        "INSERT INTO conversations VALUES ('c', 'ann', 10, 10.0, 6, :blob)",
        "INSERT INTO items VALUES ('c', 1, 'i', :blob)",
        "INSERT INTO completions VALUES ('k', 'ann', 10, 3, :blob, :blob)",  # was changed
        "INSERT INTO memories VALUES ('ann', 'key', 'm', 10.0, 3, :blob)",
    ):
        execute(url, statement, **({"blob": b"123"} if ":blob" in statement else {}))

    async def scenario(store: Store) -> None:
        await add_items(store, "ann", "c", [StoredItem("j", b"1234")])
        tables = ("responses", "conversations", "completions", "memories")
        sizes = [execute(url, f"SELECT size FROM {table}")[0][0] for table in tables]  # noqa: S608
        assert sizes == [4 * ROW + 9, 3 * ROW + 10, ROW + 6, ROW + 3]
        assert [row.source for row in await get_turns(store, "ann", ["key"])] == [None]
        assert (await store.sweep()).expired == 3  # by the age that they had

    run_scenario(url, scenario)


def test_the_migrations_create_the_tables_that_queries_use(url: str) -> None:
    create_version(url, migrations.NEWEST)
    engine = create_engine(url)
    inspector = inspect(engine)
    columns = {
        name: {column["name"] for column in inspector.get_columns(name)}
        for name in inspector.get_table_names()
    }
    keys = {
        name: inspector.get_pk_constraint(name)["constrained_columns"] for name in METADATA.tables
    }
    engine.dispose()
    assert columns.pop("dragoman") == {"version"}
    assert columns == {name: set(table.columns.keys()) for name, table in METADATA.tables.items()}
    assert keys == {
        name: [*table.primary_key.columns.keys()] for name, table in METADATA.tables.items()
    }


def test_a_newer_database_is_rejected(url: str) -> None:
    create_version(url, migrations.NEWEST)
    execute(url, "UPDATE dragoman SET version = 99")
    with pytest.raises(StoreError, match="version 99"):
        asyncio.run(open_store(url))
    assert execute(url, "SELECT version FROM dragoman") == [(99,)]


def test_a_failed_migration_leaves_the_database_unchanged(url: str) -> None:
    create_version(url, 1)
    execute(url, "CREATE TABLE memories (mine INTEGER)")  # in the way of step 2
    with pytest.raises(StoreError, match="cannot be opened"):
        asyncio.run(open_store(url))
    assert execute(url, "SELECT version FROM dragoman") == [(1,)]
    execute(url, "DROP TABLE memories")
    run_scenario(url, lambda store: add_response(store, make_response("r")))


# failures

BAD_URLS = {
    "mysql://host/name": "must begin with",
    "sqlite+aiosqlite:///x": "must begin with",
    "postgresql+asyncpg://host/name": "must begin with",
    "nonsense": "cannot be parsed",
    "sqlite:///x?cache=shared": "only option",
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
    with pytest.raises(StoreError, match=r"install dragoman\[postgres\]"):
        asyncio.run(open_store("postgresql://host/name"))


def test_only_its_user_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store.db"

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
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
