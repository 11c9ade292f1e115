"""The database of the store: connections and transactions.

Everything here blocks and runs in the threads of `executor`. SQLite has one connection, used by one
thread. Writing transactions take the write lock when they begin: one that reads first and asks for
the lock later can fail because another process wrote in between. PostgreSQL has one connection per
thread.

Messages of the database go to the log. Clients learn only that it is unavailable or full.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from sqlalchemy import URL, Connection, Engine, RootTransaction, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from dragoman.errors import Unavailable
from dragoman.store import migrations
from dragoman.store.rows import StoreError
from dragoman.store.servers import describe_this_process
from dragoman.store.transaction import Transaction

log = logging.getLogger("dragoman.store")

T = TypeVar("T")

LOCK_TIMEOUT = 10.0  # seconds to wait for a lock or a connection
STATEMENT_TIMEOUT = 60.0  # seconds
VACUUM_PAGES = 2000  # pages of a SQLite file that are freed at once
DISK_FULL = ("SQLITE_FULL", "53100")  # error codes of SQLite and PostgreSQL

SQLITE_SETTINGS = (
    "PRAGMA auto_vacuum = INCREMENTAL",  # has an effect only before the first table exists
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_size_limit = 67108864",
)


class Database:
    """One database, migrated to the newest version."""

    def __init__(self, url: str, connections: int, row_limit: int) -> None:
        parsed = _parse_url(url)
        self._server = describe_this_process()
        self._row_limit = row_limit
        try:
            if parsed.drivername == "sqlite":
                self._engine = _create_sqlite_engine(parsed)
            else:
                self._engine = _create_postgres_engine(parsed, connections)
            self._migrate()
        except (SQLAlchemyError, OSError) as error:
            reason = getattr(error, "orig", None) or error
            shown = parsed.render_as_string(hide_password=True)
            raise StoreError(f"The store {shown} cannot be opened: {reason}") from error

    def run(self, operations: Sequence[Callable[[Transaction], T]], *, write: bool) -> list[T]:
        """Run operations in one transaction, which is committed when this returns."""
        with (
            _translate_errors(),
            self._engine.connect() as connection,
            _begin(connection, write=write),
        ):
            transaction = Transaction(connection, self._server, self._row_limit)
            return [operation(transaction) for operation in operations]

    def shrink(self) -> None:
        """Return free pages of a SQLite file to the disk."""
        if self._engine.dialect.name != "sqlite":
            return
        with _translate_errors(), self._engine.connect() as connection:
            file = connection.connection.driver_connection
            assert isinstance(file, sqlite3.Connection)  # noqa: S101
            # run as a script, because one step of this statement frees only one page
            file.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")

    def close(self) -> None:
        self._engine.dispose()

    def _migrate(self) -> None:
        migrated = False
        try:
            while self._apply_next_migration():
                migrated = True
        except BaseException:
            self._engine.dispose()
            raise
        if migrated:
            log.info("database migrated to version %d", migrations.NEWEST)

    def _apply_next_migration(self) -> bool:
        with self._engine.connect() as connection, _begin(connection, write=True):
            return migrations.apply_next(connection)


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError("The store's URL cannot be parsed.") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreError("The store's URL must begin with sqlite:// or postgresql://.")
    return parsed


def _create_postgres_engine(url: URL, connections: int) -> Engine:
    if find_spec("psycopg") is None:
        raise StoreError("PostgreSQL needs a driver: install dragoman[postgres].")
    timeouts = f"-c statement_timeout={STATEMENT_TIMEOUT:.0f}s -c lock_timeout={LOCK_TIMEOUT:.0f}s"
    defaults = {
        "connect_timeout": f"{LOCK_TIMEOUT:.0f}",
        "tcp_user_timeout": f"{STATEMENT_TIMEOUT * 1000:.0f}",
        "application_name": "dragoman",
    }
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    arguments["options"] = f"{timeouts} {url.query.get('options', '')}"
    return create_engine(
        url,
        connect_args=arguments,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=LOCK_TIMEOUT,
        pool_pre_ping=True,
        hide_parameters=True,
    )


def _create_sqlite_engine(url: URL) -> Engine:
    if set(url.query) - {"timeout"}:
        raise StoreError("The only option of a SQLite store is timeout.")
    in_memory = url.database in (None, "", ":memory:")
    if not in_memory:
        _create_file(Path(str(url.database)))
    engine = create_engine(
        url,
        connect_args={} if "timeout" in url.query else {"timeout": LOCK_TIMEOUT},
        hide_parameters=True,
        **({"poolclass": StaticPool} if in_memory else {"poolclass": QueuePool, "pool_size": 1}),
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _create_file(path: Path) -> None:
    """Create a file for this user alone; SQLite gives its other files the same mode."""
    for parent in reversed(path.absolute().parents):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _configure_sqlite(file: sqlite3.Connection, _: object) -> None:
    file.isolation_level = None  # SQLAlchemy begins transactions, not the driver
    for setting in SQLITE_SETTINGS:
        file.execute(setting)
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:  # another process does the same right now
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin(connection: Connection, *, write: bool) -> RootTransaction:
    return connection.execution_options(dragoman_write=write).begin()


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("dragoman_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Log errors of the database, and raise errors that reveal nothing of it to clients."""
    try:
        yield
    except IntegrityError as error:
        raise StoreError("A row with this id exists already.") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        cause = getattr(error, "orig", None) or error
        log.error("the database failed: %s", cause)
        code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
        if code in DISK_FULL:
            message = "The server has no space left to store this."
            raise Unavailable(message, retry_after=60) from error
        message = "The server's database is not available."
        raise Unavailable(message, retry_after=5) from error
