"""Databases of older and newer versions."""

from __future__ import annotations

import asyncio
import logging

import pytest
from sqlalchemy import create_engine, inspect

from dragoman.responses.state import KEY_NAME
from dragoman.store import migrations
from dragoman.store.rows import ROW, StoredItem, StoreError, SweepCounts
from dragoman.store.store import Store
from dragoman.store.tables import METADATA
from tests.support.stores import (
    add_items,
    add_response,
    execute,
    get_history,
    get_secret,
    get_turns,
    list_frames,
    make_response,
    open_store,
    run_scenario,
)


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
    execute(url, "INSERT INTO secrets VALUES ('old name', :data)", data=b"secret")

    async def scenario(store: Store) -> None:
        chain = await get_history(store, "ann", "b")
        assert chain is not None
        assert [(row.id, row.status, row.body, row.conversation) for row in chain] == [
            ("a", "completed", b"12345", None),
            ("b", "failed", b"12345!", None),
        ]
        assert await list_frames(store, "ann", "a", 0) == [(7, b"seven")]
        assert await get_secret(store, KEY_NAME) == b"secret"
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


def test_a_migration_is_logged_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def open_and_close() -> None:
        await (await open_store(url)).aclose()

    with caplog.at_level(logging.INFO, "dragoman.store"):
        asyncio.run(open_and_close())
        asyncio.run(open_and_close())
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"database migrated to version {migrations.NEWEST}"]
