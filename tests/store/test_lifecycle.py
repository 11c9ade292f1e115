"""Stores that live through deaths, upgrades, crowds and full disks."""

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
from tests.support.store_worker import ending
from tests.support.stores import KINDS, POSTGRES, address, died, opened, play, poke, response


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with create_database(request.param, tmp_path) as made:
        yield made


@contextlib.contextmanager
def child(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python of its own, killed at the end."""
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


# deaths


def said_before_death(url: str, seed: int) -> list[list[Any]]:
    """Let a server work, kill it at some moment, and return all that it had said."""
    with child("-m", "tests.support.store_worker", url, str(seed)) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(random.Random(seed).randint(5, 150))]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    return [json.loads(line) for line in lines if line.endswith("\n")]


async def check(store: Store, name: str, told: dict[str, list[tuple[str, int]]]) -> None:
    """A response is as was promised, or as the one thing under way would have made it."""
    done, tried = told["done"], told["try"]
    row = await get_response(store, "ann", name)
    if row is None:
        assert not done
        return
    items, last = ending(name)
    numbers = [number for number, _ in await list_frames(store, "ann", name, -1)]
    held = [await store.read(lambda tx: tx.conversations.get_item("ann", "c", item.id)) for item in items]
    version = json.loads(row.body.removesuffix(b"!"))["version"]
    if row.status == "completed":
        assert ("end", 99) in tried
        assert version == 99
        assert numbers[-2:] == [number for number, _ in last]
        assert held == items
    else:
        assert (row.status, row.body[-1:]) == ("failed", b"!")
        assert ("end", 99) not in done
        versions = [0, *(number for what, number in tried if what == "update")]
        promised = [0, *(number for what, number in done if what == "update")]
        assert versions.index(version) >= len(promised) - 1
        assert held == [None, None]
        assert 1000 not in numbers
    for what, number in done:
        if what == "append":
            assert set(range(number * 10, number * 10 + 5)) <= set(numbers)


@pytest.mark.parametrize("seed", range(4))
def test_after_a_kill_nothing_promised_is_lost_and_nothing_is_half(url: str, seed: int) -> None:
    told: dict[str, dict[str, list[tuple[str, int]]]] = {}
    for kind, *words in said_before_death(url, seed):
        if words:
            name, what, number = words
            record = told.setdefault(name, {"try": [], "done": []})
            record[kind].append((what, number))

    async def scenario(store: Store) -> None:
        for name, record in told.items():
            await check(store, name, record)
        assert execute(url, "SELECT id FROM responses WHERE ended IS NULL") == []
        assert len(execute(url, "SELECT id FROM servers")) == 1

    assert told
    run_scenario(url, scenario)


HOLD = """
import asyncio, sys
from tests.support.stores import opened, response
async def main():
    store = await open_store(sys.argv[1])
    await add_response(store, make_response("theirs", body=b"1"))
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_what_a_living_process_runs_is_left_alone_until_it_dies(url: str) -> None:
    async def scenario(store: Store) -> None:
        with child("-c", HOLD, url) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert await store.sweep() == SweepCounts()
            found = await get_response(store, "ann", "theirs")
            assert found is not None
            assert found.status == "in_progress"
            process.kill()
            dead = os.WEXITED | os.WNOWAIT  # and not yet buried
            await asyncio.to_thread(os.waitid, os.P_PID, process.pid, dead)
            assert await store.sweep() == SweepCounts(failed=1)
            found = await get_response(store, "ann", "theirs")
            assert found is not None
            assert (found.status, found.body) == ("failed", fail_body(b"1"))

    run_scenario(url, scenario)


# what a row of the register says, and whether the server it stands for is taken for dead
SERVERS = {
    "itself": ("", False),
    "no such process": ("pid = 2147483647", True),
    "its number has another process": ("started = '1'", True),
    "elsewhere, silent": ("place = 'boot elsewhere', beat = beat - 61", True),
    "not in the register": (None, True),
}


@pytest.mark.parametrize("case", SERVERS)
def test_who_is_dead(url: str, case: str) -> None:
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
        await add_response(other, make_response("again"))  # it is known again
        if case == "not in the register":
            assert await mine.sweep() == SweepCounts()

    run_scenario(url, scenario, stores=2)


def test_a_server_elsewhere_lives_while_it_is_heard(url: str) -> None:
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


def test_a_server_that_is_heard_in_the_last_moment_lives(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        execute(url, "UPDATE servers SET place = 'boot elsewhere', beat = beat - 61")
        other = Database(url, 1)
        [dead] = other.run([lambda desk: desk.servers.dead()], False)
        execute(url, "UPDATE servers SET beat = beat + 61")
        [buried] = other.run([lambda desk: desk.servers.bury(dead[0], died)], True)
        other.close()
        assert (len(dead), buried) == (1, (0, True))
        assert await update_response(store, "ann", "r", "completed", b"2")

    run_scenario(url, scenario)


def test_a_server_that_was_taken_for_dead_does_not_believe_it(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        execute(url, "DELETE FROM servers")
        assert await store.sweep() == SweepCounts()
        assert await update_response(store, "ann", "r", "completed", b"2")

    run_scenario(url, scenario)


def test_a_file_from_before_a_reboot_has_no_living_server(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def scenario(mine: Store, other: Store) -> None:
        await add_response(other, make_response("r"))
        execute(url, "UPDATE servers SET place = 'then' WHERE id = (SELECT server FROM responses)")
        assert await mine.sweep() == SweepCounts(failed=1)

    run_scenario(url, scenario, stores=2)


def test_a_body_that_cannot_be_rewritten_still_fails(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: bytes) -> bytes:
        raise ValueError

    async def scenario() -> StoredResponse | None:
        store = await Store.open(url, failed=broken)
        await add_response(store, make_response("r", body=b"1"))
        await store.aclose()
        store = await open_store(url)
        found = await get_response(store, "ann", "r")
        await store.aclose()
        return found

    found = asyncio.run(scenario())
    assert found is not None
    assert (found.status, found.body) == ("failed", b"1")
    assert "could not be rewritten" in caplog.text


# crowds

CROWD = """
import asyncio, sys
from dragoman.store.rows import Entry
from tests.support.stores import opened, response
async def main(url, who):
    store = await open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    secret = await get_secret(store, "seal")
    won = []
    for turn in range(20):
        await add_response(store, make_response(f"{who}-{turn}"))
        await add_items(store, "ann", "c", [Entry(f"{who}-{turn}", b"")])
        if await finish_response(store, f"shared-{turn}", "completed", who.encode()):
            won.append(turn)
        await finish_response(store, f"{who}-{turn}", "completed", b"end")
    print(secret.hex(), *won, flush=True)
    await store.aclose()
asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_share_a_database(url: str) -> None:
    """They start at once on an empty database, and then race for the same rows."""
    people = ["p", "q", "r"]
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(child("-c", CROWD, url, who)) for who in people]
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"

        async def prepare(store: Store) -> list[tuple[str, str]]:
            await add_conversation(store, StoredConversation(id="c", owner="ann", created=1))
            for turn in range(20):
                await add_response(store, make_response(f"shared-{turn}"))
            talks = [asyncio.to_thread(process.communicate, "go\n") for process in crowd]
            return await asyncio.gather(*talks)

        told = run_scenario(url, prepare)
    assert [process.returncode for process in crowd] == [0, 0, 0], told
    lines = [out.split() for out, _ in told]
    assert len({secret for secret, *_ in lines}) == 1

    async def scenario(store: Store) -> None:
        items = await store.read(lambda tx: tx.conversations.list_items("ann", "c", after=None, limit=100, newest_first=False))
        expected = {f"{who}-{turn}" for who in people for turn in range(20)}
        assert items is not None
        assert len(items) == 60
        assert {item.id for item in items} == expected
        for name in expected:
            found = await get_response(store, "ann", name)
            assert found is not None
            assert (found.status, found.body) == ("completed", b"end")
        for turn in range(20):
            found = await get_response(store, "ann", f"shared-{turn}")
            assert found is not None
            assert [found.body] == [
                who.encode()
                for who, (_, *won) in zip(people, lines, strict=True)
                if str(turn) in won
            ]

    run_scenario(url, scenario)


# upgrades


def at_version(url: str, version: int) -> None:
    """Make a database as an older server left it."""
    engine = create_engine(url)
    more = True
    while more:
        with engine.begin() as connection:
            more = migrations.step(connection, version)
    engine.dispose()


def test_an_old_database_is_brought_up_with_all_it_holds(url: str) -> None:
    at_version(url, 1)
    old = "id, owner, status, created, ended, server, background, hidden, cancel, previous"
    for row in (
        "'a', 'ann', 'completed', 10, 11.0, 'old', false, false, false, NULL",
        "'b', 'ann', 'in_progress', 12, NULL, 'old', true, false, false, 'a'",
    ):
        execute(url, f"INSERT INTO responses ({old}) VALUES ({row})")  # noqa: S608
    for name in ("a", "b"):
        execute(
            url, "INSERT INTO bodies VALUES (:id, :body, :said)", id=name, body=b"12345", said=b"[]"
        )
        execute(url, "INSERT INTO frames VALUES (:id, 7, :data)", id=name, data=b"seven")
    execute(url, "INSERT INTO secrets VALUES ('seal', :data)", data=b"kept")

    async def scenario(store: Store) -> None:
        chain = await get_history(store, "ann", "b")
        assert chain is not None
        assert [(row.id, row.status, row.body, row.conversation) for row in chain] == [
            ("a", "completed", b"12345", None),
            ("b", "failed", b"12345!", None),
        ]
        assert await list_frames(store, "ann", "a", 0) == [(7, b"seven")]
        assert await get_secret(store, "seal") == b"kept"
        sizes = execute(url, "SELECT size FROM responses ORDER BY id")
        assert [size for (size,) in sizes] == [3 * ROW + 12, 3 * ROW + 13]  # with body and event
        assert await store.sweep() == SweepCounts(expired=1)  # the other one ended just now

    run_scenario(url, scenario)
    assert execute(url, "SELECT version FROM dragoman") == [(migrations.NEWEST,)]


def test_old_rows_are_counted_as_new_ones_are(url: str) -> None:
    at_version(url, 3)
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


def test_the_steps_make_the_tables_that_queries_use(url: str) -> None:
    at_version(url, migrations.NEWEST)
    engine = create_engine(url)
    made = inspect(engine)
    found = {
        name: {column["name"] for column in made.get_columns(name)}
        for name in made.get_table_names()
    }
    keys = {name: made.get_pk_constraint(name)["constrained_columns"] for name in METADATA.tables}
    engine.dispose()
    assert found.pop("dragoman") == {"version"}
    assert found == {name: set(table.columns.keys()) for name, table in METADATA.tables.items()}
    assert keys == {
        name: [*table.primary_key.columns.keys()] for name, table in METADATA.tables.items()
    }


def test_a_newer_database_is_refused(url: str) -> None:
    at_version(url, migrations.NEWEST)
    execute(url, "UPDATE dragoman SET version = 99")
    with pytest.raises(StoreError, match="version 99"):
        asyncio.run(open_store(url))
    assert execute(url, "SELECT version FROM dragoman") == [(99,)]


def test_a_step_that_fails_leaves_the_database_as_it_was(url: str) -> None:
    at_version(url, 1)
    execute(url, "CREATE TABLE memories (mine INTEGER)")  # in the way of step 2
    with pytest.raises(StoreError, match="cannot be opened"):
        asyncio.run(open_store(url))
    assert execute(url, "SELECT version FROM dragoman") == [(1,)]
    execute(url, "DROP TABLE memories")
    run_scenario(url, lambda store: add_response(store, make_response("r")))


# what goes wrong

BAD = {
    "mysql://host/name": "must begin with",
    "sqlite+aiosqlite:///x": "must begin with",
    "postgresql+asyncpg://host/name": "must begin with",
    "nonsense": "cannot be read",
    "sqlite:///x?cache=shared": "only option",
    "sqlite:////proc/nowhere/store.db": "cannot be opened",
    "postgresql://me:hunter2@127.0.0.1:1/name": "cannot be opened|install",
}


@pytest.mark.parametrize("bad", BAD)
def test_an_address_that_does_not_work_is_explained(bad: str) -> None:
    with pytest.raises(StoreError, match=BAD[bad]) as caught:
        asyncio.run(open_store(bad))
    assert "hunter2" not in str(caught.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"install dragoman\[postgres\]"):
        asyncio.run(open_store("postgresql://host/name"))


def test_the_file_is_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "store.db"

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        modes = {found.name: found.stat().st_mode & 0o777 for found in path.parent.iterdir()}
        assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
        assert [parent.stat().st_mode & 0o777 for parent in path.parents[:2]] == [0o700, 0o700]

    old = os.umask(0o022)
    try:
        run_scenario(f"sqlite:///{path}", scenario)
    finally:
        os.umask(old)


def test_a_locked_file_is_waited_for_without_blocking_the_loop(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db?timeout=0.3"
    holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        holder.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(update_response(store, "ann", "r", "completed", b""))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0.001)
            turns += 1
        with pytest.raises(Unavailable) as caught:
            writing.result()
        assert turns > 20
        assert str(tmp_path) not in caught.value.message
        assert "SQL" not in caught.value.message
        assert await get_response(store, "ann", "r") == make_response("r")  # reading goes on
        holder.execute("COMMIT")
        assert await update_response(store, "ann", "r", "completed", b"")

    run_scenario(url, scenario)
    holder.close()


FULL = """
import asyncio, resource, signal, sys
from dragoman.errors import Unavailable
from tests.support.stores import opened, response
async def main(url):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = await open_store(url)
    await add_response(store, make_response("kept"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    try:
        for turn in range(100):
            await add_response(store, make_response(f"r{turn}", body=b"x" * 100_000))
    except Unavailable as error:
        print(error.message)
    print(turn, (await get_response(store, "ann", "kept")) is not None, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await add_response(store, make_response("after"))
    await store.aclose()
asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with child("-c", FULL, url) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    message, line = out.splitlines()
    count, kept = line.split()
    assert message.startswith("The server")
    assert str(tmp_path) not in message
    assert kept == "True"

    async def scenario(store: Store) -> None:
        for name in ("kept", "after", *(f"r{turn}" for turn in range(int(count)))):
            assert await get_response(store, "ann", name) is not None
        assert await get_response(store, "ann", f"r{count}") is None

    run_scenario(url, scenario)


def test_deleted_rows_give_their_room_back(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        for place in range(20):
            await add_response(store, make_response(f"r{place}", body=b"x" * 100_000, status="completed"))
        for place in range(20):
            await delete_response(store, "ann", f"r{place}")
        await store.sweep()

    run_scenario(f"sqlite:///{tmp_path}/store.db", scenario)
    assert (tmp_path / "store.db").stat().st_size < 500_000


def test_who_waits_together_fails_alone(url: str) -> None:
    """Writes that wait for the database go to disk together; one that is wrong spoils no other."""

    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r5"))
        adding = [add_response(store, make_response(f"r{place}")) for place in range(200)]
        done = await asyncio.gather(*adding, return_exceptions=True)
        assert [place for place, error in enumerate(done) if error] == [5]
        assert isinstance(done[5], StoreError)
        for place in range(200):
            assert await get_response(store, "ann", f"r{place}") is not None

    run_scenario(url, scenario)


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"something else" * 100)
    with pytest.raises(StoreError, match="not a database"):
        asyncio.run(open_store(f"sqlite:///{tmp_path}/store.db"))
    assert (tmp_path / "store.db").read_bytes() == b"something else" * 100


def test_a_closed_store_says_so(url: str) -> None:
    async def scenario() -> None:
        store = await open_store(url)
        await store.aclose()
        await store.aclose()
        with pytest.raises(Unavailable):
            await get_response(store, "ann", "r")

    asyncio.run(scenario())


def test_who_stops_waiting_leaves_nothing_half(url: str) -> None:
    async def scenario(store: Store) -> None:
        for place in range(30):
            adding = asyncio.ensure_future(add_response(store, make_response(f"r{place}")))
            await asyncio.sleep(0)
            adding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await adding

    run_scenario(url, scenario)
    begun = execute(url, "SELECT status, body FROM responses LEFT JOIN bodies ON response = id")
    assert {(status, bytes(body)) for status, body in begun} <= {("failed", b'{"id":1}!')}


def test_the_library_is_imported_only_when_a_store_is_opened() -> None:
    code = "import sys, dragoman.store.store; print({'sqlalchemy', 'psycopg'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.skipif(not POSTGRES, reason="needs PostgreSQL")
def test_a_database_that_comes_back_is_used_again() -> None:
    with postgres.cluster() as server:

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
