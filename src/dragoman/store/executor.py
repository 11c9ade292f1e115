"""The way from the event loop to the database: threads of the store's own.

SQLite has one thread, because it writes one transaction at a time; PostgreSQL has a few. To bring a
transaction to the disk takes milliseconds, so those that wait for SQLite's one thread go together
in one; if that fails, each goes alone, and fails alone. A caller that stops waiting does not stop
what has begun: it is done whole, or was never begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.errors import Unavailable

if TYPE_CHECKING:
    from dragoman.store.database import Database
    from dragoman.store.transaction import Transaction

T = TypeVar("T")

THREADS = 4  # and as many connections
TOGETHER = 64  # that are one transaction at most

Work = Callable[["Transaction"], T]


class StoreExecutor:
    """Runs transactions for an event loop. Made by `open`."""

    def __init__(self, database: Database, threads: ThreadPoolExecutor, together: bool) -> None:
        self._database = database
        self._threads = threads
        self._together = together
        self._waiting: deque[tuple[Work[Any], Future[Any]]] = deque()
        self._begun: set[Future[Any]] = set()
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> StoreExecutor:
        count = 1 if url.startswith("sqlite") else THREADS
        threads = ThreadPoolExecutor(count, "dragoman-store")
        try:
            loop = asyncio.get_running_loop()
            database = await loop.run_in_executor(threads, _connect, url, count)
        except BaseException:
            threads.shutdown(wait=False)
            raise
        return cls(database, threads, together=count == 1)

    async def read(self, work: Work[T]) -> T:
        return await self._run(lambda: self._database.run([work], False)[0])

    async def write(self, work: Work[T]) -> T:
        """On disk when it returns."""
        if not self._together:
            return await self._run(lambda: self._database.run([work], True)[0])
        self._check()
        promise: Future[T] = Future()
        self._waiting.append((work, promise))
        self._submit(self._write_waiting)
        return await asyncio.wrap_future(promise)

    async def shrink(self) -> None:
        await self._run(self._database.shrink)

    async def settle(self) -> None:
        """Until all is done that has begun by now, whoever stopped waiting for it."""
        await asyncio.to_thread(wait, list(self._begun))

    async def aclose(self) -> None:
        """Let what has begun come to its end, and close."""
        if not self._closed:
            self._closed = True
            if self._together:  # a connection of SQLite is closed by the thread that opened it
                self._threads.submit(self._database.close)
            await asyncio.to_thread(self._threads.shutdown)
            if not self._together:
                await asyncio.to_thread(self._database.close)

    async def _run(self, work: Callable[[], T]) -> T:
        self._check()
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        begun = self._threads.submit(work)
        self._begun.add(begun)
        begun.add_done_callback(self._begun.discard)
        return begun

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.")

    def _write_waiting(self) -> None:
        """In the thread. Every submission calls this, and most find that their work is done."""
        taken: list[tuple[Work[Any], Future[Any]]] = []
        while self._waiting and len(taken) < TOGETHER:
            work, promise = self._waiting.popleft()
            if promise.set_running_or_notify_cancel():
                taken.append((work, promise))
        if len(taken) > 1:
            try:
                done = self._database.run([work for work, _ in taken], True)
            except Exception:
                done = None  # one of them is at fault, and will be told so
            if done is not None:
                for (_, promise), result in zip(taken, done, strict=True):
                    promise.set_result(result)
                return
        for work, promise in taken:
            try:
                promise.set_result(self._database.run([work], True)[0])
            except BaseException as error:
                promise.set_exception(error)


def _connect(url: str, connections: int) -> Database:
    from dragoman.store.database import Database  # takes half a second

    return Database(url, connections)
