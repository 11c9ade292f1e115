"""Batches of requests, within one transaction.

A batch that has not ended is run by one server at a time, which has claimed it. Every write of that
server requires its claim: if another server has claimed the batch in between, because this one was
taken for dead, nothing is written, and `LeaseLost` is raised. The result of a line is a chunk of
the batch's output file or error file, and is counted in the transaction that writes it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import structs
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)

from dragoman.store.batches.files import FileRepository
from dragoman.store.batches.rows import BatchStatus, LeaseLost, LineResult, StoredBatch, StoredFile
from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.paging import list_page
from dragoman.store.rows import ROW, Page
from dragoman.store.tables import batches, chunks, get_current_time

MAX_CANDIDATES = 500  # batches that are read to claim some of them
# the column of the time when a batch got a status
STATUS_TIMES: dict[BatchStatus, str] = {
    "failed": "failed_at",
    "in_progress": "in_progress_at",
    "finalizing": "finalizing_at",
    "completed": "completed_at",
    "expired": "expired_at",
    "cancelling": "cancelling_at",
    "cancelled": "cancelled_at",
}


class BatchRepository:
    """Reads and writes batches, on behalf of one server."""

    def __init__(
        self, connection: Connection, server: str, meter: WriteMeter, files: FileRepository
    ) -> None:
        self._connection = connection
        self._server = server
        self._meter = meter
        self._files = files

    # on behalf of the owner

    def add(self, row: StoredBatch) -> None:
        self._meter.check_ids([row.id, row.owner])
        self._meter.add(row.owner, [len(row.metadata)])
        values = structs.asdict(row) | {
            "size": ROW + len(row.metadata),
            "touched": get_current_time(self._connection),
        }
        self._connection.execute(insert(batches).values(values))

    def get(self, owner: str, batch: str) -> StoredBatch | None:
        query = select(batches).where(batches.c.id == batch, batches.c.owner == owner)
        row = self._connection.execute(query).first()
        return None if row is None else _to_stored(row)

    def list_page(self, owner: str, page: Page) -> list[StoredBatch]:
        visible = batches.c.owner == owner
        rows = list_page(self._connection, select(batches), batches, visible, page)
        return [_to_stored(row) for row in rows]

    def count_unfinished(self, owner: str) -> int:
        query = select(func.count()).where(batches.c.owner == owner, batches.c.ended.is_(None))
        return self._connection.execute(query).scalar_one()

    def request_cancel(self, owner: str, batch: str) -> StoredBatch | None:
        """Ask the server that runs a batch to cancel it; one that has ended stays as it is."""
        values = {"status": "cancelling", "cancelling_at": int(time.time())}
        is_running = batches.c.status.in_(("validating", "in_progress"))
        owned = and_(batches.c.id == batch, batches.c.owner == owner)
        self._connection.execute(update(batches).where(owned, is_running).values(values))
        return self.get(owner, batch)

    # on behalf of the server that runs them

    def has_unclaimed(self, alive: Collection[str]) -> bool:
        """Whether there are batches to claim."""
        query = select(batches.c.id).where(_is_unclaimed(alive)).limit(1)
        return self._connection.execute(query).first() is not None

    def claim(
        self, alive: Collection[str], counts: Counter[str], max_per_owner: int
    ) -> list[StoredBatch]:
        """Claim batches that no live server runs.

        `counts` says how many this server runs for each owner; no owner gets more than
        `max_per_owner`.
        """
        query = select(batches).where(_is_unclaimed(alive))
        oldest = query.order_by(batches.c.created).limit(MAX_CANDIDATES)
        counts, claimed = counts.copy(), []
        for row in self._connection.execute(oldest.with_for_update(skip_locked=True)):
            if counts[row.owner] < max_per_owner:
                counts[row.owner] += 1
                claimed.append(_to_stored(row))
        ids = [batch.id for batch in claimed]
        taken = update(batches).where(batches.c.id.in_(ids)).values(server=self._server)
        self._connection.execute(taken)
        return claimed

    def release(self, batch: str) -> None:
        """Let another server take over a batch."""
        statement = update(batches).where(self._is_leased(batch)).values(server=None)
        self._connection.execute(statement)

    def list_cancelling(self, ids: Sequence[str]) -> list[str]:
        """Return those of these batches that a client asked to cancel."""
        query = select(batches.c.id).where(batches.c.id.in_(ids), batches.c.status == "cancelling")
        return list(self._connection.execute(query).scalars())

    def start(self, batch: StoredBatch, total: int, model: str | None, expires: float) -> None:
        """Begin to run the lines of a batch that are valid; their results get files."""
        names = {"output": f"{batch.id}_output.jsonl", "error": f"{batch.id}_error.jsonl"}
        for kind, file in (("output", batch.output_file), ("error", batch.error_file)):
            row = StoredFile(
                id=file or "",
                owner=batch.owner,
                purpose="batch_output",
                filename=names[kind],
                created=int(time.time()),
                expires=expires,
                batch=batch.id,
            )
            self._files.add(row)
        counted = update(batches).where(self._is_leased(batch.id))
        self._connection.execute(counted.values(total=total, model=model))
        self._set_status(batch.id, "in_progress", "validating")

    def record_results(self, batch: StoredBatch, results: Sequence[LineResult]) -> None:
        """Store and count the results of lines; a line that has one keeps it."""
        done = self._find_done(batch, [result.number for result in results])
        results = [result for result in results if result.number not in done]
        usage = [result.usage for result in results]
        failed = sum(result.has_failed for result in results)
        counts = {
            batches.c.completed: batches.c.completed + len(results) - failed,
            batches.c.failed: batches.c.failed + failed,
            batches.c.prompt_tokens: batches.c.prompt_tokens + sum(u.prompt for u in usage),
            batches.c.cached_tokens: batches.c.cached_tokens + sum(u.cached for u in usage),
            batches.c.completion_tokens: batches.c.completion_tokens
            + sum(u.completion for u in usage),
            batches.c.reasoning_tokens: batches.c.reasoning_tokens
            + sum(u.reasoning for u in usage),
            batches.c.touched: get_current_time(self._connection),
        }
        statement = update(batches).where(self._is_leased(batch.id)).values(counts)
        if not self._connection.execute(statement).rowcount:
            raise LeaseLost("Another server runs this batch.")
        for file, is_failed in ((batch.output_file, False), (batch.error_file, True)):
            lines = [(line.number, line.data) for line in results if line.has_failed is is_failed]
            if lines and not self._files.append(batch.owner, file or "", lines):
                raise LeaseLost("The files of this batch are gone.")

    def list_done(self, batch: StoredBatch) -> set[int]:
        """Return the numbers of the lines that have a result."""
        return self._find_done(batch, None)

    def _find_done(self, batch: StoredBatch, numbers: Sequence[int] | None) -> set[int]:
        """Return those of these lines that have a result; None stands for all lines."""
        query = select(chunks.c.number).where(
            chunks.c.file.in_([batch.output_file, batch.error_file])
        )
        if numbers is not None:
            query = query.where(chunks.c.number.in_(numbers))
        return set(self._connection.execute(query).scalars())

    def finalize(self, batch: str) -> bool:
        """Set the status to `finalizing`; False if the batch is not in progress any more."""
        return self._set_status(batch, "finalizing", "in_progress")

    def finish(
        self, batch: StoredBatch, status: BatchStatus, ttl: float, errors: bytes | None
    ) -> None:
        """End a batch; its files with results become visible to the owner."""
        now = int(time.time())
        kept: dict[str, str | None] = {}
        for column, file in (("output_file", batch.output_file), ("error_file", batch.error_file)):
            kept[column] = (
                file if file and self._finish_file(batch.owner, file, now + ttl) else None
            )
        self._set_status(
            batch.id, status, None, errors=errors, ended=float(now), server=None, **kept
        )

    def _finish_file(self, owner: str, file: str, expires: float) -> bool:
        """Make a file visible; one without content is deleted."""
        row = self._files.finish(owner, file, expires=expires, created=int(time.time()))
        if row is not None and row.bytes == 0:
            self._files.delete(owner, file)
            return False
        return row is not None

    def _set_status(
        self, batch: str, status: BatchStatus, before: BatchStatus | None, **values: object
    ) -> bool:
        """Set the status, and the time of that; False if it is not what is expected."""
        condition = self._is_leased(batch)
        if before is not None:
            condition = and_(condition, batches.c.status == before)
        values |= {"status": status, STATUS_TIMES[status]: int(time.time())}
        values["touched"] = get_current_time(self._connection)
        statement = update(batches).where(condition).values(values)
        if self._connection.execute(statement).rowcount:
            return True
        self._check_lease(batch)
        return False

    def _check_lease(self, batch: str) -> None:
        query = select(batches.c.id).where(self._is_leased(batch))
        if self._connection.execute(query).first() is None:
            raise LeaseLost("Another server runs this batch.")

    def _is_leased(self, batch: str) -> ColumnElement[bool]:
        return and_(
            batches.c.id == batch, batches.c.server == self._server, batches.c.ended.is_(None)
        )


def _is_unclaimed(alive: Collection[str]) -> ColumnElement[bool]:
    """Whether a batch has not ended, and no live server runs it."""
    has_server = batches.c.server.in_(list(alive))
    return and_(batches.c.ended.is_(None), or_(batches.c.server.is_(None), not_(has_server)))


def _to_stored(row: Row[Any]) -> StoredBatch:
    values = {name: getattr(row, name) for name in StoredBatch.__struct_fields__}
    values["metadata"] = bytes(row.metadata)
    values["errors"] = None if row.errors is None else bytes(row.errors)
    return StoredBatch(**values)
