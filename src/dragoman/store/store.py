"""Persistent state for code that runs on the event loop.

`Store.read` and `Store.write` run a function with a `Transaction`, in a thread of the store's own:

    row = await store.read(lambda tx: tx.responses.get(owner, id))

One call is one transaction; its changes are on disk when the call returns. Maintenance runs by
itself while a store is open.

The database library is slow to import, so it is imported when a store is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dragoman.store.executor import StoreExecutor
from dragoman.store.maintenance.tasks import Maintenance
from dragoman.store.rows import StoreLimits, SweepCounts

if TYPE_CHECKING:
    from dragoman.store.transaction import Transaction

T = TypeVar("T")

DEFAULT_LIMITS = StoreLimits()


class Store:
    """An open store. Created by `open`."""

    def __init__(self, executor: StoreExecutor, maintenance: Maintenance) -> None:
        self._executor = executor
        self._maintenance = maintenance

    @classmethod
    async def open(
        cls, url: str, limits: StoreLimits = DEFAULT_LIMITS, *, fail_body: Callable[[bytes], bytes]
    ) -> Store:
        """Open the store at `sqlite:///path`, `sqlite://` (in memory) or `postgresql://…`.

        `fail_body` turns the body of a running response into that of one whose server died.
        """
        executor = await StoreExecutor.open(url, limits)
        maintenance = Maintenance(executor, limits, fail_body)
        try:
            await maintenance.start()
        except BaseException:
            await executor.aclose()
            raise
        return cls(executor, maintenance)

    async def aclose(self) -> None:
        """Close the store. Responses that this server still runs become failed."""
        await self._executor.wait_submitted()
        await self._maintenance.stop()
        await self._executor.aclose()

    async def read(self, operation: Callable[[Transaction], T]) -> T:
        """Run a function that only reads, in a transaction of its own."""
        return await self._executor.read(operation)

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction; its changes are on disk when this returns.

        The transaction may be shared with other writes, and the function may run twice if one of
        those fails. An exception rolls back what the function did.
        """

        def run(tx: Transaction) -> tuple[T, Counter[str]]:
            before = tx.bytes_written.copy()
            result = operation(tx)
            return result, tx.bytes_written - before

        result, written = await self._executor.write(run)
        self._maintenance.count_written(written)
        return result

    async def delete(self, operation: Callable[[Transaction], T]) -> T:
        """Run a function that deletes, as `write` does; it also works on a full disk."""
        return await self._executor.write(operation, frees_space=True)

    async def sweep(self) -> SweepCounts:
        """Fail the responses of dead servers, delete expired rows, evict the oldest ones."""
        return await self._maintenance.sweep()
