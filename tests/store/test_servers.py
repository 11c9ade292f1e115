"""Servers that share a database, and servers that were killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dragoman.store.database import Database
from dragoman.store.rows import StoredConversation, StoredResponse, StoreLimits, SweepCounts
from dragoman.store.store import Store
from tests.store.processes import start_python
from tests.support.store_worker import make_ending
from tests.support.stores import (
    add_conversation,
    add_response,
    execute,
    fail_body,
    get_response,
    list_frames,
    make_response,
    open_store,
    run_scenario,
    update_response,
)

pytestmark = pytest.mark.slow


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
            condition = "WHERE id = (SELECT server FROM responses)"
            execute(url, f"UPDATE servers SET {change} {condition}")  # noqa: S608
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
        condition = "WHERE id = (SELECT server FROM responses)"
        change = "UPDATE servers SET place = :place, beat = beat - 50 "
        execute(url, change + condition, place=place.split()[0] + " another namespace")
        assert await mine.sweep() == SweepCounts()
        execute(url, f"UPDATE servers SET beat = beat - 50 {condition}")  # noqa: S608
        assert await mine.sweep() == SweepCounts(failed=1)

    run_scenario(url, scenario, stores=2)


def test_a_late_heartbeat_keeps_a_server_from_being_declared_dead(url: str) -> None:
    async def scenario(store: Store) -> None:
        await add_response(store, make_response("r"))
        execute(url, "UPDATE servers SET place = 'boot elsewhere', beat = beat - 61")
        other = Database(url, 1, StoreLimits())
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
