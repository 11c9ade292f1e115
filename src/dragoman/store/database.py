"""The database of the store: connections and transactions.

Everything here blocks and runs in the threads of `executor`. SQLite has one connection for the
thread that writes and one for the thread that reads, which no lock delays. Writing transactions
take the write lock when they begin: one that reads first and asks for the lock later can fail
because another process wrote in between. PostgreSQL has one connection per thread.

A transaction waits a few seconds for a lock. After that has failed, later transactions wait only
briefly until one succeeds, so that requests fail fast while another process has locked the
database. On a full disk, a transaction that frees space uses the `DiskReserve`.

Messages of the database go to the log. Clients learn only that it is unavailable or full.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, RootTransaction, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from dragoman.errors import StoreUnavailable
from dragoman.store import migrations
from dragoman.store.limits.disk_reserve import DiskReserve
from dragoman.store.rows import DatabaseLocked, DiskFull, StoreError, StoreLimits
from dragoman.store.servers import describe_this_process
from dragoman.store.transaction import Transaction

log = logging.getLogger("dragoman.store")

T = TypeVar("T")

LOCK_TIMEOUT = 5.0  # seconds to wait for a lock or a connection
RETRY_LOCK_TIMEOUT = 0.2  # the same, after a wait has timed out
STATEMENT_TIMEOUT = 60.0  # seconds
VACUUM_PAGES = 2000  # pages of a SQLite file that are freed at once
VACUUM_PAGES_FULL = 200  # the same on a full disk, where moving a page needs space, too
# error codes of SQLite and PostgreSQL
DISK_FULL = ("SQLITE_FULL", "53100")
LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED", "55P03")

SQLITE_SETTINGS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA journal_size_limit = 67108864",
)


class Database:
    """One database, migrated to the newest version.

    `batches_writes`: several writes are best run in one transaction. `reads_apart`: another thread
    can read meanwhile.
    """

    def __init__(self, url: str, connections: int, limits: StoreLimits) -> None:
        parsed = _parse_url(url)
        self._reserve = DiskReserve(_find_reserve_path(parsed))
        self._lock_timeout = _read_lock_timeout(parsed)
        self._was_locked = False
        self.batches_writes = parsed.drivername == "sqlite"
        self.reads_apart = self.batches_writes and not is_in_memory(parsed)
        self._server = describe_this_process()
        self._limits = limits
        try:
            if parsed.drivername == "sqlite":
                self._engine = _create_sqlite_engine(parsed, connections)
            else:
                self._engine = _create_postgres_engine(parsed, connections)
            self._migrate()
            self._reserve.hold()
        except (SQLAlchemyError, OSError) as error:
            reason = getattr(error, "orig", None) or getattr(error, "strerror", None) or error
            shown = parsed.render_as_string(hide_password=True).replace("+psycopg", "", 1)
            raise StoreError(f"The store {shown} cannot be opened: {reason}") from error

    def run(self, operations: Sequence[Callable[[Transaction], T]], *, write: bool) -> list[T]:
        """Run operations in one transaction, which is committed when this returns."""
        try:
            results = self._run(operations, write=write)
        except DatabaseLocked:
            self._was_locked = True
            raise
        if write:
            self._was_locked = False
        return results

    def run_freeing_space(self, operation: Callable[[Transaction], T]) -> T:
        """Run an operation that deletes; it may use the space that is reserved for that."""
        try:
            return self.run([operation], write=True)[0]
        except DiskFull:
            if not self._reserve.release():
                raise
        log.warning("the disk is full; deleting with the space that is reserved for that")
        result = self.run([operation], write=True)[0]
        with suppress(StoreUnavailable):  # the rows are deleted in any case
            self._shrink_on_full_disk()
        self._reserve.hold()
        return result

    def _run(self, operations: Sequence[Callable[[Transaction], T]], *, write: bool) -> list[T]:
        timeout = RETRY_LOCK_TIMEOUT if self._was_locked else self._lock_timeout
        with (
            _translate_errors(),
            self._engine.connect() as connection,
            _begin(connection, write=write, timeout=timeout),
        ):
            transaction = Transaction(connection, self._server, self._limits)
            return [operation(transaction) for operation in operations]

    def shrink(self) -> None:
        """Return free pages of a SQLite file to the disk."""
        if not self.batches_writes:
            return
        try:
            self._run_pragma(f"incremental_vacuum({VACUUM_PAGES})")
        except DiskFull:
            self._reserve.release()
            self._shrink_on_full_disk()
        self._reserve.hold()

    def _shrink_on_full_disk(self) -> None:
        """Return a few pages, and the space of the write-ahead log before and after that."""
        self._run_pragma("wal_checkpoint(TRUNCATE)")
        self._run_pragma(f"incremental_vacuum({VACUUM_PAGES_FULL})")
        self._run_pragma("wal_checkpoint(TRUNCATE)")

    def _run_pragma(self, pragma: str) -> None:
        with _translate_errors(), self._engine.connect() as connection:
            file = connection.connection.driver_connection
            assert isinstance(file, sqlite3.Connection)  # noqa: S101
            # run as a script, because one step of a vacuum frees only one page
            file.executescript(f"PRAGMA {pragma}")

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
        timeout = self._lock_timeout
        with self._engine.connect() as connection, _begin(connection, write=True, timeout=timeout):
            return migrations.apply_next(connection)


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError(
            "The store's URL must begin with sqlite:// or postgresql://; that of a file is "
            "sqlite:///PATH."
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreError("The store's URL must begin with sqlite:// or postgresql://.")
    return parsed


def _create_postgres_engine(url: URL, connections: int) -> Engine:
    if find_spec("psycopg") is None:
        raise StoreError("PostgreSQL needs a driver: `pip install 'dragoman[postgres]'`.")
    timeouts = f"-c statement_timeout={STATEMENT_TIMEOUT:.0f}s -c lock_timeout={LOCK_TIMEOUT:.0f}s"
    defaults = {
        "connect_timeout": f"{LOCK_TIMEOUT:.0f}",
        "tcp_user_timeout": f"{STATEMENT_TIMEOUT * 1000:.0f}",
        "application_name": "dragoman",
        "client_encoding": "utf8",  # text is bytes otherwise, where the cluster has no encoding
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


def _create_sqlite_engine(url: URL, connections: int) -> Engine:
    if set(url.query) - {"timeout"}:
        raise StoreError("The URL of a SQLite store has an unknown option; it may have `timeout`.")
    pool: dict[str, Any] = {"poolclass": StaticPool}
    if not is_in_memory(url):
        _create_file(Path(str(url.database)))
        pool = {"poolclass": QueuePool, "pool_size": connections, "max_overflow": 0}
    timeout = {} if "timeout" in url.query else {"timeout": LOCK_TIMEOUT}
    engine = create_engine(
        url, connect_args={"check_same_thread": False, **timeout}, hide_parameters=True, **pool
    )
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _read_lock_timeout(url: URL) -> float:
    if url.drivername != "sqlite":
        return LOCK_TIMEOUT
    try:
        return float(str(url.query.get("timeout", LOCK_TIMEOUT)))
    except ValueError:
        raise StoreError("The timeout of a SQLite store is a number of seconds.") from None


def is_in_memory(url: URL) -> bool:
    return url.drivername == "sqlite" and url.database in (None, "", ":memory:")


def _find_reserve_path(url: URL) -> Path | None:
    if url.drivername != "sqlite" or is_in_memory(url):
        return None
    return Path(f"{url.database}-reserve")


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
    if file.execute("PRAGMA page_count").fetchone() == (0,):  # later it has no effect, and locks
        file.execute("PRAGMA auto_vacuum = INCREMENTAL")
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:  # another process does the same right now
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin(connection: Connection, *, write: bool, timeout: float) -> RootTransaction:
    """Begin a transaction that waits this many seconds for a lock."""
    options = {"dragoman_write": write, "dragoman_timeout": timeout}
    return connection.execution_options(**options).begin()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {options['dragoman_timeout'] * 1000:.0f}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options["dragoman_write"] else "BEGIN")


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
            raise DiskFull(message, retry_after=60) from error
        kind = DatabaseLocked if str(code).startswith(LOCKED) else StoreUnavailable
        raise kind("The server's database is not available.", retry_after=5) from error
