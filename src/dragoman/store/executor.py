"""Runs transactions in dedicated threads, so that the event loop never blocks on the database.

A SQLite file has a thread that writes, because it takes one writing transaction at a time, and one
that reads; PostgreSQL has a few for both. Committing a transaction to disk takes milliseconds, so
writes that wait for SQLite's only writer are committed together in one transaction; if that fails,
each of them runs in a transaction of its own and fails alone. A caller that stops waiting does not
stop a transaction that has begun: it is either completed, or never started. An operation that
cannot start within a few seconds, because others wait for a lock or a lost connection, fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from dragoman.errors import StoreUnavailable, Unavailable
from dragoman.store.rows import DatabaseLocked, StoreLimits

if TYPE_CHECKING:
    from dragoman.store.database import Database
    from dragoman.store.transaction import Transaction

T = TypeVar("T")

THREADS = 4  # of PostgreSQL, and as many connections
MAX_BATCH = 64  # writes that are committed together
START_TIMEOUT = 5.0  # seconds that an operation waits until it starts


class PendingWrite(Struct, frozen=True, eq=False):
    """A write that waits for SQLite's writer."""

    operation: Callable[[Transaction], Any]
    result: Future[Any]
    frees_space: bool


class StoreExecutor:
    """Runs transactions for an event loop. Created by `open`."""

    def __init__(self, database: Database, writers: ThreadPoolExecutor) -> None:
        self._database = database
        self._writers = writers
        self._readers = writers
        if database.reads_apart:
            self._readers = ThreadPoolExecutor(1, "dragoman-store-reader")
        self._pending: deque[PendingWrite] = deque()
        self._submitted: set[Future[Any]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, limits: StoreLimits) -> StoreExecutor:
        threads = ThreadPoolExecutor(1 if url.startswith("sqlite") else THREADS, "dragoman-store")
        try:
            loop = asyncio.get_running_loop()
            database = await loop.run_in_executor(threads, _connect, url, limits)
        except BaseException:
            threads.shutdown(wait=False)
            raise
        return cls(database, threads)

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        return await self._run(
            lambda: self._database.run([operation], write=False)[0], self._readers
        )

    async def write(self, operation: Callable[[Transaction], T], *, frees_space: bool = False) -> T:
        """Run an operation; its changes are on disk when this returns.

        One that `frees_space` also works on a full disk.
        """
        if not self._database.batches_writes:
            return await self._run(lambda: self._database.run([operation], write=True)[0])
        self._check_open()
        result: Future[T] = Future()
        self._pending.append(PendingWrite(operation, result, frees_space))
        self._submit(self._write_pending, self._writers)
        try:
            return await _await_result(result)
        finally:
            del result  # its error leads here: break the reference cycle

    async def shrink(self) -> None:
        await self._run(self._database.shrink)

    async def wait_submitted(self) -> None:
        """Wait for everything submitted so far, including what no caller waits for any more."""
        await asyncio.to_thread(wait, list(self._submitted))

    async def aclose(self) -> None:
        """Finish what was submitted, and close the database."""
        if not self._is_closed:
            self._is_closed = True
            await asyncio.to_thread(self._readers.shutdown)
            await asyncio.to_thread(self._writers.shutdown)
            await asyncio.to_thread(self._database.close)

    async def _run(self, function: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> T:
        self._check_open()
        return await _await_result(self._submit(function, threads or self._writers))

    def _submit(self, function: Callable[[], T], threads: ThreadPoolExecutor) -> Future[T]:
        future = threads.submit(function)
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable("The server is shutting down.")

    def _write_pending(self) -> None:
        """Runs in the thread, once per write; most calls find their write already done."""
        batch: list[PendingWrite] = []
        while self._pending and len(batch) < MAX_BATCH:
            write = self._pending.popleft()
            if write.result.set_running_or_notify_cancel():
                batch.append(write)
        if len(batch) > 1 and self._write_together(batch):
            return
        for write in batch:
            self._write_alone(write)

    def _write_together(self, batch: list[PendingWrite]) -> bool:
        """Run writes in one transaction; False if one of them failed, and each must run alone."""
        try:
            values = self._database.run([write.operation for write in batch], write=True)
        except DatabaseLocked as error:  # as it would be for each of them
            for write in batch:
                copy = DatabaseLocked(error.message, retry_after=error.retry_after)
                write.result.set_exception(copy)
            return True
        except Exception:
            return False
        for write, value in zip(batch, values, strict=True):
            write.result.set_result(value)
        return True

    def _write_alone(self, write: PendingWrite) -> None:
        try:
            if write.frees_space:
                value = self._database.run_freeing_space(write.operation)
            else:
                [value] = self._database.run([write.operation], write=True)
            write.result.set_result(value)
        except BaseException as error:
            write.result.set_exception(error)
            del write  # the error leads here: break the reference cycle


async def _await_result(future: Future[T]) -> T:
    """Return the result, or raise `StoreUnavailable` if the operation does not start in time."""
    result = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({result}, timeout=START_TIMEOUT)
    except asyncio.CancelledError:
        result.cancel()
        raise
    if not done and future.cancel():
        raise StoreUnavailable("The server's database is not available.", retry_after=5)
    try:
        return await result
    finally:
        del future, result, done  # the error leads here: break the reference cycle


def _connect(url: str, limits: StoreLimits) -> Database:
    from dragoman.store.database import Database  # the import takes half a second

    return Database(url, THREADS, limits)
