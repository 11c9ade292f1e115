"""What goes by itself: the old, and the oldest when there is too much.

Age is counted from the last use: a response that is gone on from stays, with all that it follows.
What a response or a chat completion said goes with it.

Every method takes a batch in one transaction and says how many rows that were, so that nobody
waits long for a sweep. Several servers may sweep at once: they go from old to new, and skip what
another one has locked.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, delete, func, select, tuple_

from dragoman.store.tables import clock, completions, conversations, memories, responses

BATCH = 200

Key = tuple[str, ...]
Age = tuple[Table, Column[Any]]
AGES: tuple[Age, ...] = (  # what may go, and what says how old it is
    (responses, responses.c.touched),
    (conversations, conversations.c.touched),
    (memories, memories.c.touched),
    (completions, completions.c.created),
)
SPEAKERS = (responses, completions)  # that have memories


class ExpiryRepository:
    """Deletes what need not be kept."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def expired(self, ttl: float) -> int:
        then = clock(self._connection) - ttl
        return sum(self._drop(age, age[1] < then) for age in AGES)

    def evicted(self, most: int) -> int:
        """Take the oldest as long as there are more than so many bytes."""
        excess = self._size() - most
        oldest = [found for age in AGES for found in self._oldest(age)] if excess > 0 else []
        count = 0
        for _, size, table, key in sorted(oldest, key=lambda found: found[0])[:BATCH]:
            if excess > 0:
                said, gone = self._delete(table, [key])
                excess -= said + size * gone
                count += gone
        return count

    def _size(self) -> int:
        sums = (select(func.coalesce(func.sum(table.c.size), 0)) for table, _ in AGES)
        return sum(int(self._connection.execute(asked).scalar_one()) for asked in sums)

    def _oldest(self, age: Age) -> list[tuple[float, int, Table, Key]]:
        table, time = age
        asked = select(time, table.c.size, *table.primary_key).where(_may_go(table))
        rows = self._connection.execute(asked.order_by(time).limit(BATCH))
        return [(row[0], row[1], table, tuple(row[2:])) for row in rows]

    def _drop(self, age: Age, late: ColumnElement[bool]) -> int:
        table, time = age
        some = select(*table.primary_key).where(_may_go(table), late).order_by(time).limit(BATCH)
        chosen = self._connection.execute(some.with_for_update(skip_locked=True))
        return self._delete(table, [tuple(row) for row in chosen])[1]

    def _delete(self, table: Table, keys: list[Key]) -> tuple[int, int]:
        """Delete rows with what they said: bytes of that, and how many rows."""
        if not keys:
            return 0, 0
        said = 0
        if table in SPEAKERS:
            theirs = memories.c.source.in_([name for (name,) in keys])
            size = select(func.coalesce(func.sum(memories.c.size), 0)).where(theirs)
            said = int(self._connection.execute(size).scalar_one())
            self._connection.execute(delete(memories).where(theirs))
        gone = delete(table).where(tuple_(*table.primary_key).in_(keys))
        return said, self._connection.execute(gone).rowcount


def _may_go(table: Table) -> ColumnElement[bool]:
    """A response must have ended first."""
    return table.c.ended.is_not(None) if table is responses else table.c.size >= 0
