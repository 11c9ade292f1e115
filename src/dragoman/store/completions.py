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
    update,
)

from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.paging import list_page
from dragoman.store.rows import ROW, Page, StoredCompletion
from dragoman.store.tables import completions


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

    def list_page(self, owner: str, page: Page) -> list[tuple[str, bytes]]:
        """Return a page of ids and bodies by age."""
        query = select(completions.c.id, completions.c.body)
        visible = completions.c.owner == owner
        rows = list_page(self._connection, query, completions, visible, page)
        return [(row.id, bytes(row.body)) for row in rows]


def _is_owned(owner: str, completion: str) -> ColumnElement[bool]:
    return and_(completions.c.id == completion, completions.c.owner == owner)
