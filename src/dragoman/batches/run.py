"""One batch, from its file to its end, on the server that has claimed it.

All lines are validated first. Then a few at a time are answered, each in a task of its own; every
answer is stored before the next line takes its place. A line that is refused because a limit is
reached or the server is busy is sent again later. When the batch is cancelled or expires, the lines
in progress are cancelled, and every line without an answer gets an error.

A batch can continue at any of these stages: its status and the answers in the store say where its
last server stopped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.batches.lines import FileLine, LineSplitter
from dragoman.batches.validation import BatchValidator, decode_lines
from dragoman.errors import TooLarge, Unavailable, Unsupported
from dragoman.files import FileService
from dragoman.protocols import batches
from dragoman.protocols.batches import DIALECT, BatchLine, LineAnswer
from dragoman.protocols.shared.json_body import LARGE_BODY
from dragoman.store.batches.rows import LineResult, StoredBatch
from dragoman.types.worker_threads import run_in_worker

if TYPE_CHECKING:
    from dragoman.store.store import Store
    from dragoman.store.transaction import Transaction

T = TypeVar("T")
log = logging.getLogger("dragoman.batches")

MAX_RETRY = 30.0  # seconds
STORE_RETRY = 2.0  # seconds until a store that is not available is tried again
UNANSWERED_LINES = 200  # that get an error in one transaction
LINE_OVERHEAD = 4096  # bytes of a line besides the body of its request
OK = 200

StopReason: TypeAlias = Literal["cancelled", "expired"]
# sends the body of a request to an endpoint, for an owner
SendRequest: TypeAlias = Callable[[str, str, bytes], Awaitable[LineAnswer]]
UNANSWERED: dict[StopReason, tuple[str, str]] = {
    "cancelled": (
        "batch_cancelled",
        "The batch was cancelled before this request could be executed.",
    ),
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
}


class BatchEnvironment(Struct, frozen=True, eq=False):
    """What all batches of a server use."""

    store: Store
    files: FileService
    send: SendRequest
    running: asyncio.Semaphore  # lines that are sent at once, of all batches
    concurrency: int  # lines of one batch that are sent or wait for it
    get_body_limit: Callable[[], int]


class BatchRun:
    """A batch that this server runs."""

    def __init__(self, batch: StoredBatch, environment: BatchEnvironment) -> None:
        self.batch = batch
        self._environment = environment
        self._store = environment.store
        self._working: asyncio.Task[None] | None = None
        self._stop_reason: StopReason | None = None

    def stop(self, reason: StopReason) -> None:
        """End the batch early."""
        if self._stop_reason is None:
            self._stop_reason = reason
            if self._working is not None:
                self._working.cancel()

    async def run(self) -> None:
        """Run the batch to its end; `LeaseLost` if another server has taken it over."""
        remaining = self.batch.expires_at - time.time()
        expiry = asyncio.get_running_loop().call_later(max(0.0, remaining), self.stop, "expired")
        if self.batch.status == "cancelling":
            self.stop("cancelled")
        try:
            await self._finish(await self._work_until_stopped())
        finally:
            expiry.cancel()

    async def _work_until_stopped(self) -> StopReason | None:
        """Work until all lines have answers, or until the batch is stopped; return why it was."""
        if self._stop_reason is not None:
            return self._stop_reason
        working = self._working = asyncio.get_running_loop().create_task(self._work())
        try:
            await asyncio.wait({working})
        finally:
            if not working.done():  # the server stops
                working.cancel()
                await asyncio.wait({working})
        if working.cancelled():
            return self._stop_reason
        working.result()
        return None

    async def _work(self) -> None:
        if self.batch.status == "validating" and not await self._validate():
            return
        if self.batch.status == "in_progress":
            await self._answer_lines()

    # validating

    async def _validate(self) -> bool:
        """Check all lines; False if the batch has failed."""
        validator = BatchValidator(self.batch.endpoint, self._max_line)
        async for chunk in self._environment.files.read_chunks(self.batch.input_file):
            if not await run_in_worker(validator.feed, chunk):
                break
        else:
            await run_in_worker(validator.finish)
        batch = self.batch
        if validator.problems:
            errors = batches.encode_errors(validator.problems)
            ttl = self._get_output_ttl()
            await self._write(lambda tx: tx.batches.finish(batch, "failed", ttl, errors))
            self.batch = replace(batch, status="failed")
            return False
        expires = time.time() + self._get_output_ttl() + batch.expires_at - batch.created
        total, model = validator.total, validator.model
        await self._write(lambda tx: tx.batches.start(batch, total, model, expires))
        self.batch = replace(batch, status="in_progress", total=total, model=model)
        return True

    @property
    def _max_line(self) -> int:
        return self._environment.get_body_limit() + LINE_OVERHEAD

    def _get_output_ttl(self) -> float:
        ttl = self._environment.files.limits.ttl
        return ttl if self.batch.output_ttl is None else min(self.batch.output_ttl, ttl)

    # answering

    async def _answer_lines(self) -> None:
        places = asyncio.Semaphore(self._environment.concurrency)
        try:
            async with asyncio.TaskGroup() as tasks:
                async for number, line in self._read_unanswered():
                    await places.acquire()
                    task = tasks.create_task(self._answer(number, line))
                    task.add_done_callback(lambda _: places.release())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _read_unanswered(self) -> AsyncIterator[tuple[int, BatchLine]]:
        """Yield the lines that have no answer yet, with their numbers."""
        batch = self.batch
        done = await self._store.read(lambda tx: tx.batches.list_done(batch))
        splitter = LineSplitter(self._max_line)

        def decode(lines: list[FileLine]) -> list[tuple[int, BatchLine]]:
            open_lines = [line for line in lines if line.number not in done]
            return decode_lines(open_lines, batch.endpoint)

        async for chunk in self._environment.files.read_chunks(batch.input_file):
            for line in await run_in_worker(lambda data: decode(splitter.feed(data)), chunk):
                yield line
        for line in decode(splitter.finish()):
            yield line

    async def _answer(self, number: int, line: BatchLine) -> None:
        answer = make_rejection(line) if line.rejected else await self._send(line)
        make = partial(make_result, number, line, answer)
        is_large = len(answer.body) > LARGE_BODY
        await self._record(line, await run_in_worker(make) if is_large else make())

    async def _send(self, line: BatchLine) -> LineAnswer:
        """Send a line until it is answered with more than a request to try again."""
        environment, batch = self._environment, self.batch
        while True:
            async with environment.running:
                answer = await environment.send(batch.owner, batch.endpoint, line.body)
            if answer.retry_after is None:
                return answer
            await asyncio.sleep(min(MAX_RETRY, answer.retry_after) * random.uniform(0.5, 1.5))

    async def _record(self, line: BatchLine, result: LineResult) -> None:
        """Store the answer to a line. Nothing but the end of the server stops that."""
        batch = self.batch
        try:
            await self._write(lambda tx: tx.batches.record_results(batch, [result]))
        except TooLarge as error:
            message = f"The answer could not be stored: {error.message}"
            data = batches.encode_unanswered(line.custom_id, "answer_too_large", message)
            failure = LineResult(result.number, data, has_failed=True)
            await self._write(lambda tx: tx.batches.record_results(batch, [failure]))

    # ending

    async def _finish(self, reason: StopReason | None) -> None:
        if self.batch.status == "failed":
            return
        batch, ttl = self.batch, self._get_output_ttl()
        if reason is not None:
            await self._fail_unanswered(reason)
        elif not await self._write(lambda tx: tx.batches.finalize(batch.id)):
            reason = "cancelled"  # in the last moment
        status = reason or "completed"
        await self._write(lambda tx: tx.batches.finish(batch, status, ttl, None))
        log.info("batch %s %s", batch.id, status)

    async def _fail_unanswered(self, reason: StopReason) -> None:
        """Give every line without an answer an error."""
        if self.batch.total == 0:  # it was not validated
            return
        code, message = UNANSWERED[reason]
        results: list[LineResult] = []
        async for number, line in self._read_unanswered():
            data = batches.encode_unanswered(line.custom_id, code, message)
            results.append(LineResult(number, data, has_failed=True))
            if len(results) == UNANSWERED_LINES:
                await self._record_all(results)
                results = []
        if results:
            await self._record_all(results)

    async def _record_all(self, results: list[LineResult]) -> None:
        batch = self.batch
        await self._write(lambda tx: tx.batches.record_results(batch, results))

    async def _write(self, operation: Callable[[Transaction], T]) -> T:
        """Run a transaction; while the store is not available, try again."""
        while True:
            try:
                return await self._store.write(operation)
            except Unavailable as error:
                log.warning("cannot store batch %s, trying again: %s", self.batch.id, error.message)
            await asyncio.sleep(STORE_RETRY)


def make_result(number: int, line: BatchLine, answer: LineAnswer) -> LineResult:
    data = batches.encode_answer(line.custom_id, answer)
    if answer.status != OK:
        return LineResult(number, data, has_failed=True)
    return LineResult(number, data, usage=batches.read_usage(answer.body))


def make_rejection(line: BatchLine) -> LineAnswer:
    """Make the answer to a line that asks for what a batch does not support."""
    error = Unsupported(f"`{line.rejected}` is not supported in a batch.", param=line.rejected)
    return LineAnswer(error.status, "", DIALECT.encode_error(error, ""))
