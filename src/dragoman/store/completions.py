"""Chat completions that clients asked to store, within one transaction."""

from __future__ import annotations

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from dragoman.errors import BadRequest
from dragoman.store.rows import ROW, StoredCompletion
from dragoman.store.tables import completions
from dragoman.store.write_meter import WriteMeter


class CompletionRepository:
    """Reads and writes stored chat completions."""

    def __init__(self, connection: Connection, meter: WriteMeter) -> None:
        self._connection = connection
        self._meter = meter

    def add(self, row: StoredCompletion) -> None:
        self._meter.check_ids([row.id, row.owner])
        self._meter.add(row.owner, [len(row.body) + len(row.messages)])
        self._connection.execute(
            insert(completions).values(
                id=row.id,
                owner=row.owner,
                created=row.created,
                size=ROW + len(row.body) + len(row.messages),
                body=row.body,
                messages=row.messages,
            )
        )

    def get(self, owner: str, completion: str) -> StoredCompletion | None:
        query = select(completions).where(_is_owned(owner, completion))
        row = self._connection.execute(query).first()
        if row is None:
            return None
        return StoredCompletion(
            id=row.id,
            owner=row.owner,
            created=row.created,
            body=bytes(row.body),
            messages=bytes(row.messages),
        )

    def update(self, owner: str, completion: str, body: bytes) -> bool:
        self._meter.add(owner, [len(body)])
        growth = len(body) - func.length(completions.c.body)
        values = {"body": body, "size": completions.c.size + growth}
        statement = update(completions).where(_is_owned(owner, completion)).values(values)
        return self._connection.execute(statement).rowcount > 0

    def delete(self, owner: str, completion: str) -> bool:
        statement = delete(completions).where(_is_owned(owner, completion))
        return self._connection.execute(statement).rowcount > 0

    def list_page(
        self, owner: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[tuple[str, bytes]]:
        """A page of ids and bodies by age. `after` is the last id of the page before."""
        age = tuple_(completions.c.created, completions.c.id)
        query = select(completions.c.id, completions.c.body).where(completions.c.owner == owner)
        if after is not None:
            created_query = select(completions.c.created).where(_is_owned(owner, after))
            created = self._connection.execute(created_query).scalar()
            if created is None:
                raise BadRequest("There is no such chat completion.", param="after")
            position = tuple_(created, after)
            query = query.where(age < position if newest_first else age > position)
        order = [completions.c.created, completions.c.id]
        query = query.order_by(*(column.desc() if newest_first else column for column in order))
        rows = self._connection.execute(query.limit(limit))
        return [(row.id, bytes(row.body)) for row in rows]


def _is_owned(owner: str, completion: str) -> ColumnElement[bool]:
    return and_(completions.c.id == completion, completions.c.owner == owner)
