"""The service for batches: creates, gets, lists and cancels them, and runs those it has claimed.

Every few seconds, and when a batch is created here, the service looks for batches that no live
server runs, and claims some. So a batch continues after a restart, and where several servers use
one database, another server takes over the batches of one that died. Twice a second, it looks
whether a client of any server has cancelled one of its batches.

Every method for clients takes the owner; a batch of another owner does not exist.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from dragoman.batches.run import BatchEnvironment, BatchRun, SendRequest
from dragoman.errors import (
    BadRequest,
    DragomanError,
    InvalidValue,
    NotFound,
    Overloaded,
    shorten_id,
)
from dragoman.files import FileService
from dragoman.protocols import batches
from dragoman.protocols.batches import BatchObject, BatchUsage, LineProblem, NewBatch, RequestCounts
from dragoman.protocols.batches.encode import CachedTokens, ReasoningTokens
from dragoman.store.batches.rows import LeaseLost, StoredBatch
from dragoman.store.rows import Page

if TYPE_CHECKING:
    from dragoman.store.store import Store
    from dragoman.store.transaction import Transaction

log = logging.getLogger("dragoman.batches")

CLAIM_INTERVAL = 5.0  # seconds
CANCEL_INTERVAL = 0.5  # seconds
MAX_UNFINISHED = 100  # batches of one owner
MAX_RUNNING = 4  # batches of one owner that a server runs at once
RETRY_AFTER = 60.0  # seconds


class BatchOptions(Struct, frozen=True, kw_only=True, eq=False):
    """How a server runs batches."""

    concurrency: int  # lines that are sent at once
    is_persistent: bool  # the store may have batches of earlier servers
    get_body_limit: Callable[[], int]  # of a request, in bytes


class BatchService:
    """The batches of one server."""

    def __init__(
        self,
        get_store: Callable[[], Awaitable[Store]],
        files: FileService,
        send: SendRequest,
        options: BatchOptions,
    ) -> None:
        self._get_store = get_store
        self._files = files
        self._send = send
        self._options = options
        self._slots = asyncio.Semaphore(options.concurrency)
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._polling: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None

    # for clients

    async def create(self, owner: str, new: NewBatch) -> StoredBatch:
        """Add a batch; this server runs it soon, or another one that uses the same database."""
        now, batch = int(time.time()), f"batch_{uuid.uuid4().hex}"
        row = StoredBatch(
            id=batch,
            owner=owner,
            endpoint=new.endpoint,
            completion_window=new.completion_window,
            input_file=new.input_file,
            output_file=f"file-{uuid.uuid4().hex}",
            error_file=f"file-{uuid.uuid4().hex}",
            output_ttl=new.output_seconds,
            created=now,
            expires_at=now + new.seconds,
            metadata=new.metadata,
        )
        store = await self._get_store()
        await store.write(lambda tx: _add(tx, row))
        self.start(is_needed=True)
        self._wake.set()
        return row

    async def get(self, owner: str, batch: str) -> StoredBatch:
        store = await self._get_store()
        row = await store.read(lambda tx: tx.batches.get(owner, batch))
        if row is None:
            raise _make_not_found(batch)
        return row

    async def list_page(self, owner: str, page: Page) -> list[StoredBatch]:
        store = await self._get_store()
        return await store.read(lambda tx: tx.batches.list_page(owner, page))

    async def cancel(self, owner: str, batch: str) -> StoredBatch:
        """Ask for a batch to be cancelled; it is when its lines in progress have ended."""
        store = await self._get_store()
        row = await store.write(lambda tx: tx.batches.request_cancel(owner, batch))
        if row is None:
            raise _make_not_found(batch)
        if row.status not in ("cancelling", "cancelled"):
            raise BadRequest(
                f"The batch cannot be cancelled: its status is `{row.status}`.", param="batch_id"
            )
        if batch in self._runs:
            self._runs[batch].stop("cancelled")
        return row

    # running

    def start(self, *, is_needed: bool = False) -> None:
        """Begin to look for batches, where there may be some. Doing so twice is harmless."""
        if self._polling is not None or self._stopping is not None:
            return
        if is_needed or self._options.is_persistent:
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    def drain(self) -> None:
        """Stop at once: what is not finished is left to other servers, or to the next start."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())

    async def aclose(self) -> None:
        self.drain()
        if self._stopping is not None:
            await self._stopping

    async def _stop(self) -> None:
        tasks = [task for task in (self._polling, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(DragomanError):  # then the others see that this server is gone
            for batch in list(self._runs):
                await _release(await self._get_store(), batch)

    async def _poll(self) -> None:
        """Claim batches and notice cancellations, for ever."""
        claim_at = 0.0
        while True:
            try:
                if time.monotonic() >= claim_at or self._wake.is_set():
                    self._wake.clear()
                    claim_at = time.monotonic() + CLAIM_INTERVAL
                    await self._claim()
                await self._find_cancelled()
            except DragomanError as error:
                log.warning("cannot look up batches, trying again: %s", error.message)
            except Exception:
                log.exception("cannot look up batches")
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_INTERVAL if self._runs else CLAIM_INTERVAL):
                    await self._wake.wait()

    async def _claim(self) -> None:
        store = await self._get_store()
        counts = Counter(run.batch.owner for run in self._runs.values())
        if not await store.read(lambda tx: tx.batches.has_unclaimed(tx.servers.list_alive())):
            return
        for batch in await store.write(lambda tx: tx.claim_batches(counts, MAX_RUNNING)):
            self._start_run(batch, store)

    def _start_run(self, batch: StoredBatch, store: Store) -> None:
        options = self._options
        environment = BatchEnvironment(
            store,
            self._files,
            self._send,
            self._slots,
            options.concurrency,
            options.get_body_limit,
        )
        run = self._runs[batch.id] = BatchRun(batch, environment)
        task = asyncio.get_running_loop().create_task(self._run(run, store))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: BatchRun, store: Store) -> None:
        batch = run.batch
        log.info("running batch %s (%s)", batch.id, batch.status)
        try:
            await run.run()
        except LeaseLost:
            log.warning("another server has taken over batch %s", batch.id)
        except Exception:
            log.exception("batch %s failed", batch.id)
            await self._fail(batch, store)
        del self._runs[batch.id]  # kept if cancelled, to be released
        self._wake.set()

    async def _fail(self, batch: StoredBatch, store: Store) -> None:
        problem = LineProblem("server_error", "The server could not process this batch.")
        errors, ttl = batches.encode_errors([(None, problem)]), self._files.limits.ttl
        with suppress(DragomanError):
            await store.write(lambda tx: tx.batches.finish(batch, "failed", ttl, errors))

    async def _find_cancelled(self) -> None:
        ids = list(self._runs)
        if not ids:
            return
        store = await self._get_store()
        for batch in await store.read(lambda tx: tx.batches.list_cancelling(ids)):
            if batch in self._runs:
                self._runs[batch].stop("cancelled")


async def _release(store: Store, batch: str) -> None:
    await store.write(lambda tx: tx.batches.release(batch))


def _add(tx: Transaction, row: StoredBatch) -> None:
    file = tx.files.get(row.owner, row.input_file)
    if file is None:
        raise InvalidValue(
            f"There is no file `{shorten_id(row.input_file)}`.", param="input_file_id"
        )
    if file.purpose != "batch":
        raise InvalidValue(
            "The file must be uploaded with the purpose `batch`.", param="input_file_id"
        )
    if tx.batches.count_unfinished(row.owner) >= MAX_UNFINISHED:
        raise Overloaded(
            f"{MAX_UNFINISHED} batches have not ended yet. Wait until one has.",
            retry_after=RETRY_AFTER,
        )
    tx.batches.add(row)


def _make_not_found(batch: str) -> NotFound:
    return NotFound(f"There is no batch `{shorten_id(batch)}`.", param="batch_id")


def make_batch_object(row: StoredBatch) -> BatchObject:
    """Return a batch as clients see it; its files exist for them once it has ended."""
    has_ended = row.ended is not None
    return BatchObject(
        id=row.id,
        endpoint=row.endpoint,
        model=row.model,
        errors=None if row.errors is None else Raw(row.errors),
        input_file_id=row.input_file,
        completion_window=row.completion_window,
        status=row.status,
        output_file_id=row.output_file if has_ended else None,
        error_file_id=row.error_file if has_ended else None,
        created_at=row.created,
        in_progress_at=row.in_progress_at,
        expires_at=row.expires_at,
        finalizing_at=row.finalizing_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        expired_at=row.expired_at,
        cancelling_at=row.cancelling_at,
        cancelled_at=row.cancelled_at,
        request_counts=RequestCounts(row.total, row.completed, row.failed),
        usage=BatchUsage(
            row.prompt_tokens,
            CachedTokens(row.cached_tokens),
            row.completion_tokens,
            ReasoningTokens(row.reasoning_tokens),
            row.prompt_tokens + row.completion_tokens,
        ),
        metadata=Raw(row.metadata),
    )
