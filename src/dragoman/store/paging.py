"""Pages of rows that have an owner, by age."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, select, tuple_

from dragoman.errors import BadRequest
from dragoman.store.rows import Page


def list_page(
    connection: Connection,
    query: Select[Any],
    table: Table,
    visible: ColumnElement[bool],
    page: Page,
) -> list[Row[Any]]:
    """Run a query for a page of the visible rows, which includes their owner."""
    query = query.where(visible)
    if page.after is not None:
        created_query = select(table.c.created).where(visible, table.c.id == page.after)
        created = connection.execute(created_query).scalar()
        if created is None:
            raise BadRequest("No item of the list has this id.", param="after")
        age, position = tuple_(table.c.created, table.c.id), tuple_(created, page.after)
        query = query.where(age < position if page.newest_first else age > position)
    order = [table.c.created, table.c.id]
    query = query.order_by(*(column.desc() if page.newest_first else column for column in order))
    return list(connection.execute(query.limit(page.limit)))
