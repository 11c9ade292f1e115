"""Chat completions that a client wanted to be kept, within one transaction."""

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


class CompletionRepository:
    """What can be done with them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, row: StoredCompletion) -> None:
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
        row = self._connection.execute(select(completions).where(_own(owner, completion))).first()
        if row is None:
            return None
        texts = {"body": bytes(row.body), "messages": bytes(row.messages)}
        return StoredCompletion(id=row.id, owner=row.owner, created=row.created, **texts)

    def change(self, owner: str, completion: str, body: bytes) -> bool:
        grown = len(body) - func.length(completions.c.body)
        new = {"body": body, "size": completions.c.size + grown}
        done = update(completions).where(_own(owner, completion)).values(new)
        return self._connection.execute(done).rowcount > 0

    def delete(self, owner: str, completion: str) -> bool:
        done = self._connection.execute(delete(completions).where(_own(owner, completion)))
        return done.rowcount > 0

    def page(
        self, owner: str, after: str | None, limit: int, newest_first: bool
    ) -> list[tuple[str, bytes]]:
        """Some of them by age, id and body; `after` is the last one of the page before."""
        age = tuple_(completions.c.created, completions.c.id)
        asked = select(completions.c.id, completions.c.body).where(completions.c.owner == owner)
        if after is not None:
            made = select(completions.c.created).where(_own(owner, after))
            created = self._connection.execute(made).scalar()
            if created is None:
                raise BadRequest("There is no such chat completion.", param="after")
            place = tuple_(created, after)
            asked = asked.where(age < place if newest_first else age > place)
        order = [completions.c.created, completions.c.id]
        asked = asked.order_by(*(column.desc() if newest_first else column for column in order))
        found = self._connection.execute(asked.limit(limit))
        return [(row.id, bytes(row.body)) for row in found]


def _own(owner: str, completion: str) -> ColumnElement[bool]:
    return and_(completions.c.id == completion, completions.c.owner == owner)
