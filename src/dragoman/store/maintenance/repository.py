"""Deletes expired rows, and the oldest rows of owners that store too much.

An owner stores too much if it is above its own quota, or if the store is too large and the owner is
above the level at which all larger owners must be cut for the rest to fit. So an owner that stores
less than an equal share of the store never loses a row to what others write.

The age of a row counts from its last use: continuing a response renews its history. A file has a
time at which it expires. The replayable turns of a response or chat completion are deleted with it.

Every method deletes one batch in one transaction and returns the number of rows, so that other
transactions do not wait long. Several servers may sweep at once: they proceed from old to new and
skip expired rows that another one has locked. Only one evicts at a time: two would each delete
enough to get below the limit, together twice as much as necessary.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    func,
    not_,
    or_,
    select,
    text,
    tuple_,
)

from dragoman.store.batches.files import FileRepository, is_read_by_batch
from dragoman.store.rows import StoreLimits
from dragoman.store.tables import (
    OWNED_TABLES,
    AgeColumn,
    batches,
    completions,
    files,
    get_current_time,
    replay_turns,
    responses,
)

BATCH = 200
LOCK = 0x6472_6165  # key of the PostgreSQL advisory lock of those who evict

Key: TypeAlias = tuple[str, ...]
TURN_SOURCES = (responses, completions)  # rows that own replayable turns


class MaintenanceRepository:
    """Deletes rows by age and by size."""

    def __init__(self, connection: Connection, stored_files: FileRepository) -> None:
        self._connection = connection
        self._files = stored_files

    def delete_expired(self, ttl: float) -> int:
        """Delete rows that were not used for `ttl` seconds, and files that have expired."""
        now = get_current_time(self._connection)
        return sum(
            self._delete_where(
                table, column, files.c.expires < now if table is files else column < now - ttl
            )
            for table, column in OWNED_TABLES
        )

    def evict_oldest(self, limits: StoreLimits) -> int:
        """Delete the oldest rows of owners that store too much."""
        if self._connection.dialect.name == "postgresql":  # SQLite has one writer anyway
            self._connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        count = 0
        for owner, excess in find_excess(self._sum_sizes(), limits).items():
            count += self._evict(owner, excess)
            if count >= BATCH:
                break
        return count

    def _evict(self, owner: str, excess: int) -> int:
        """Delete an owner's oldest rows, until this many bytes are gone or the batch is full."""
        candidates = [
            row for table, column in OWNED_TABLES for row in self._list_oldest(owner, table, column)
        ]
        count = 0
        for _, size, table, key in sorted(candidates, key=lambda row: row[0])[:BATCH]:
            if excess > 0:
                turns_size, deleted = self._delete(table, [key])
                excess -= turns_size + size * deleted
                count += deleted
            if table is files:  # only a piece of it may be gone
                break
        return count

    def _sum_sizes(self) -> Counter[str]:
        """Return the bytes of all rows, by owner."""
        sizes: Counter[str] = Counter()
        for table, _ in OWNED_TABLES:
            query = select(table.c.owner, func.sum(table.c.size)).group_by(table.c.owner)
            sizes.update({owner: int(size) for owner, size in self._connection.execute(query)})
        return sizes

    def _list_oldest(
        self, owner: str, table: Table, column: AgeColumn
    ) -> list[tuple[float, int, Table, Key]]:
        query = select(column, table.c.size, *table.primary_key)
        owned = query.where(table.c.owner == owner, self._is_deletable(table))
        rows = self._connection.execute(owned.order_by(column).limit(BATCH))
        return [(row[0], row[1], table, tuple(row[2:])) for row in rows]

    def _delete_where(self, table: Table, column: AgeColumn, condition: ColumnElement[bool]) -> int:
        query = select(*table.primary_key).where(self._is_deletable(table), condition)
        batch = query.order_by(column).limit(BATCH).with_for_update(skip_locked=True)
        rows = self._connection.execute(batch)
        return self._delete(table, [tuple(row) for row in rows])[1]

    def _delete(self, table: Table, keys: list[Key]) -> tuple[int, int]:
        """Delete rows with their turns; return the bytes of the turns, and the number of rows.

        Of files, a piece of one is deleted, which counts as a row.
        """
        if not keys:
            return 0, 0
        if table is files:  # one piece in a transaction
            self._files.delete_piece(keys[0][0])
            return 0, 1
        turns_size = 0
        if table in TURN_SOURCES:
            owned_turns = replay_turns.c.source.in_([row_id for (row_id,) in keys])
            query = select(func.coalesce(func.sum(replay_turns.c.size), 0)).where(owned_turns)
            turns_size = int(self._connection.execute(query).scalar_one())
            self._connection.execute(delete(replay_turns).where(owned_turns))
        statement = delete(table).where(tuple_(*table.primary_key).in_(keys))
        return turns_size, self._connection.execute(statement).rowcount

    def _is_deletable(self, table: Table) -> ColumnElement[bool]:
        """Responses and batches must have ended, and no batch may use a file any more."""
        if table in (responses, batches):
            return table.c.ended.is_not(None)
        if table is not files:
            return table.c.size >= 0
        has_expired = files.c.expires < get_current_time(self._connection)
        is_abandoned = and_(files.c.batch.is_(None), has_expired)  # an upload that did not end
        return and_(or_(files.c.complete.is_(True), is_abandoned), not_(is_read_by_batch()))


def find_excess(sizes: Counter[str], limits: StoreLimits) -> dict[str, int]:
    """Return how many bytes each owner that stores too much has to lose."""
    allowed = {}
    for owner, size in sizes.items():
        quota = limits.find_limits(owner).stored_bytes
        allowed[owner] = size if quota is None else min(size, quota)
    room = limits.size
    for position, owner in enumerate(sorted(allowed, key=allowed.__getitem__)):
        allowed[owner] = min(allowed[owner], room // (len(allowed) - position))
        room -= allowed[owner]
    return {owner: size - allowed[owner] for owner, size in sizes.items() if size > allowed[owner]}
