"""The database behind the store: how it is reached, one transaction at a time.

Everything here blocks and runs in the store's own threads. SQLite has one connection, used by one
thread; what writes takes the write lock when it begins, because a transaction that asks for it
later can lose what it read. PostgreSQL has a connection for every thread.

What a database says goes to the log. A client is told that it is down or full, and no more.
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
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, RootTransaction, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from dragoman.errors import Unavailable
from dragoman.store import migrations
from dragoman.store.rows import StoreError
from dragoman.store.servers import this_server
from dragoman.store.transaction import Transaction

log = logging.getLogger("dragoman.store")

T = TypeVar("T")

PATIENCE = 10.0  # seconds to wait for a lock or a connection
STATEMENT = 60.0  # seconds that one statement may take
PAGES = 2000  # of a file, given back to the disk at once
FULL = ("SQLITE_FULL", "53100")  # what databases call a full disk

SETTINGS = (
    "PRAGMA auto_vacuum = INCREMENTAL",  # before the first table, or not at all
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_size_limit = 67108864",
)


class Database:
    """One database, of the newest version."""

    def __init__(self, url: str, connections: int) -> None:
        made = _url(url)
        self._here = this_server()
        try:
            self._engine = (
                _sqlite(made) if made.drivername == "sqlite" else _postgres(made, connections)
            )
            self._migrate()
        except (SQLAlchemyError, OSError) as error:
            reason = getattr(error, "orig", None) or error
            shown = made.render_as_string(hide_password=True)
            raise StoreError(f"The store {shown} cannot be opened: {reason}") from error

    def run(self, works: Sequence[Callable[[Transaction], T]], write: bool) -> list[T]:
        """Do some things in one transaction; they are kept when this returns."""
        with _told(), self._engine.connect() as connection, _begun(connection, write):
            desk = Transaction(connection, self._here)
            return [work(desk) for work in works]

    def shrink(self) -> None:
        """Give pages that are free back to the disk."""
        if self._engine.dialect.name != "sqlite":
            return
        with _told(), self._engine.connect() as connection:
            file: Any = connection.connection.driver_connection
            # run as a script, because one step of this statement frees only one page
            file.executescript(f"PRAGMA incremental_vacuum({PAGES})")

    def close(self) -> None:
        self._engine.dispose()

    def _migrate(self) -> None:
        more = True
        try:
            while more:
                with self._engine.connect() as connection, _begun(connection, True):
                    more = migrations.step(connection)
        except BaseException:
            self._engine.dispose()
            raise


def _url(url: str) -> URL:
    try:
        made = make_url(url)
    except ArgumentError:
        raise StoreError("The store's URL cannot be read.") from None
    if made.drivername in ("postgresql", "postgres"):
        made = made.set(drivername="postgresql+psycopg")
    if made.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreError("The store's URL must begin with sqlite:// or postgresql://.")
    return made


def _postgres(url: URL, connections: int) -> Engine:
    if find_spec("psycopg") is None:
        raise StoreError("PostgreSQL needs a driver: install dragoman[postgres].")
    limits = f"-c statement_timeout={STATEMENT:.0f}s -c lock_timeout={PATIENCE:.0f}s"
    usual = {"connect_timeout": f"{PATIENCE:.0f}", "tcp_user_timeout": f"{STATEMENT * 1000:.0f}"}
    usual |= {"application_name": "dragoman"}
    said = {name: value for name, value in usual.items() if name not in url.query}
    said["options"] = f"{limits} {url.query.get('options', '')}"
    return create_engine(
        url,
        connect_args=said,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=PATIENCE,
        pool_pre_ping=True,
        hide_parameters=True,
    )


def _sqlite(url: URL) -> Engine:
    if set(url.query) - {"timeout"}:
        raise StoreError("The only option of a SQLite store is timeout.")
    memory = url.database in (None, "", ":memory:")
    if not memory:
        _make(Path(str(url.database)))
    engine = create_engine(
        url,
        connect_args={} if "timeout" in url.query else {"timeout": PATIENCE},
        hide_parameters=True,
        **({"poolclass": StaticPool} if memory else {"poolclass": QueuePool, "pool_size": 1}),
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _make(path: Path) -> None:
    """A file that nobody else reads; SQLite gives the files beside it the same mode."""
    for parent in reversed(path.absolute().parents):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _prepare(file: sqlite3.Connection, _: object) -> None:
    file.isolation_level = None  # transactions begin where we say
    for setting in SETTINGS:
        file.execute(setting)
    tries = time.monotonic() + PATIENCE
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:  # another process does the same just now
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > tries:
                raise
            time.sleep(0.01)


def _begun(connection: Connection, write: bool) -> RootTransaction:
    return connection.execution_options(dragoman_write=write).begin()


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("dragoman_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def _told() -> Iterator[None]:
    """What a database says, as what a client may know."""
    try:
        yield
    except IntegrityError as error:
        raise StoreError("There is such a row already.") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        cause: Any = getattr(error, "orig", None) or error
        log.error("the database failed: %s", cause)
        code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
        if code in FULL:
            raise Unavailable("The server has no room to keep this.", retry_after=60) from error
        message = "The server's database does not answer."
        raise Unavailable(message, retry_after=5) from error
