"""What goes by itself: the hidden that have ended, the old, and the oldest when there is too much.

Every method takes a batch in one transaction and says how many rows that were, so that nobody
waits long for a sweep. Several servers may sweep at once: they go from old to new, and skip what
another one has locked.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, and_, delete, func, select, tuple_

from dragoman.store.tables import clock, completions, conversations, memories, responses

BATCH = 200
GRACE = 600.0  # seconds that a hidden response is kept after its end

Age = tuple[Table, Column[Any]]
AGES: tuple[Age, ...] = (  # what may go, and what says how old it is
    (responses, responses.c.created),
    (conversations, conversations.c.touched),
    (memories, memories.c.touched),
    (completions, completions.c.created),
)


class Sweeping:
    """Deletes what need not be kept."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def hidden(self) -> int:
        late = responses.c.ended < clock(self._connection) - GRACE
        return self._drop((responses, responses.c.ended), and_(responses.c.hidden, late))

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
                gone = delete(table).where(tuple_(*table.primary_key) == key)
                count += self._connection.execute(gone).rowcount
                excess -= size
        return count

    def _size(self) -> int:
        sums = (select(func.coalesce(func.sum(table.c.size), 0)) for table, _ in AGES)
        return sum(int(self._connection.execute(asked).scalar_one()) for asked in sums)

    def _oldest(self, age: Age) -> list[tuple[float, int, Table, tuple[str, ...]]]:
        table, time = age
        asked = select(time, table.c.size, *table.primary_key).where(_may_go(table))
        rows = self._connection.execute(asked.order_by(time).limit(BATCH))
        return [(row[0], row[1], table, tuple(row[2:])) for row in rows]

    def _drop(self, age: Age, late: ColumnElement[bool]) -> int:
        table, time = age
        some = select(*table.primary_key).where(_may_go(table), late).order_by(time).limit(BATCH)
        chosen = tuple_(*table.primary_key).in_(some.with_for_update(skip_locked=True))
        return self._connection.execute(delete(table).where(chosen)).rowcount


def _may_go(table: Table) -> ColumnElement[bool]:
    """A response must have ended first."""
    return table.c.ended.is_not(None) if table is responses else table.c.size >= 0
