"""Runs transactions in threads of their own, so that the event loop never waits for the database.

SQLite has one thread, because it writes one transaction at a time; PostgreSQL has a few. Committing
a transaction to disk takes milliseconds, so writes that wait for SQLite's only thread are committed
together in one transaction; if that fails, each of them runs in a transaction of its own and fails
alone. A caller that stops waiting does not stop a transaction that has begun: it is either
completed, or never started.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dragoman.errors import Unavailable

if TYPE_CHECKING:
    from dragoman.store.database import Database
    from dragoman.store.transaction import Transaction

T = TypeVar("T")

THREADS = 4  # and as many connections
MAX_BATCH = 64  # writes that are committed together

Operation: TypeAlias = Callable[["Transaction"], T]
PendingWrite: TypeAlias = tuple[Operation[Any], Future[Any]]


class StoreExecutor:
    """Runs transactions for an event loop. Created by `open`."""

    def __init__(self, database: Database, threads: ThreadPoolExecutor, batches: bool) -> None:
        self._database = database
        self._threads = threads
        self._batches = batches
        self._pending: deque[PendingWrite] = deque()
        self._submitted: set[Future[Any]] = set()
        self._closed = False

    @classmethod
    async def open(cls, url: str, row_limit: int) -> StoreExecutor:
        count = 1 if url.startswith("sqlite") else THREADS
        threads = ThreadPoolExecutor(count, "dragoman-store")
        try:
            loop = asyncio.get_running_loop()
            database = await loop.run_in_executor(threads, _connect, url, count, row_limit)
        except BaseException:
            threads.shutdown(wait=False)
            raise
        return cls(database, threads, batches=count == 1)

    async def read(self, operation: Operation[T]) -> T:
        return await self._run(lambda: self._database.run([operation], write=False)[0])

    async def write(self, operation: Operation[T]) -> T:
        """Run an operation; its changes are on disk when this returns."""
        if not self._batches:
            return await self._run(lambda: self._database.run([operation], write=True)[0])
        self._check_open()
        result: Future[T] = Future()
        self._pending.append((operation, result))
        self._submit(self._write_pending)
        return await asyncio.wrap_future(result)

    async def shrink(self) -> None:
        await self._run(self._database.shrink)

    async def wait_submitted(self) -> None:
        """Wait for everything submitted so far, including what no caller waits for any more."""
        await asyncio.to_thread(wait, list(self._submitted))

    async def aclose(self) -> None:
        """Finish what was submitted, and close the database."""
        if not self._closed:
            self._closed = True
            if self._batches:  # a SQLite connection must be closed by the thread that opened it
                self._threads.submit(self._database.close)
            await asyncio.to_thread(self._threads.shutdown)
            if not self._batches:
                await asyncio.to_thread(self._database.close)

    async def _run(self, function: Callable[[], T]) -> T:
        self._check_open()
        return await asyncio.wrap_future(self._submit(function))

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        future = self._threads.submit(function)
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.")

    def _write_pending(self) -> None:
        """Runs in the thread, once per write; most calls find their write already done."""
        batch: list[PendingWrite] = []
        while self._pending and len(batch) < MAX_BATCH:
            operation, result = self._pending.popleft()
            if result.set_running_or_notify_cancel():
                batch.append((operation, result))
        if len(batch) > 1:
            try:
                values = self._database.run([operation for operation, _ in batch], write=True)
            except Exception:
                values = None  # one of them failed; below each runs alone and gets its own error
            if values is not None:
                for (_, result), value in zip(batch, values, strict=True):
                    result.set_result(value)
                return
        for operation, result in batch:
            try:
                result.set_result(self._database.run([operation], write=True)[0])
            except BaseException as error:
                result.set_exception(error)


def _connect(url: str, connections: int, row_limit: int) -> Database:
    from dragoman.store.database import Database  # the import takes half a second

    return Database(url, connections, row_limit)
