"""Small things, within one transaction: secrets of the server, and what models said."""

from __future__ import annotations

import secrets as chance
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from dragoman.store.rows import ROW, StoredTurn
from dragoman.store.tables import clock, memories, secrets, upsert

CHUNK = 500  # keys in one question


class KeyValueRepository:
    """Secrets and memories."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def secret(self, name: str, size: int) -> bytes:
        """Random bytes, the same for all who ask this database for this name."""
        made = {"name": name, "data": chance.token_bytes(size)}
        self._connection.execute(
            upsert(self._connection, secrets).values(made).on_conflict_do_nothing()
        )
        asked = select(secrets.c.data).where(secrets.c.name == name)
        return bytes(self._connection.execute(asked).scalar_one())

    def remember(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        newest = {row.key: row for row in rows}
        if not newest:
            return
        statement = upsert(self._connection, memories).values(touched=clock(self._connection))
        columns = ("model", "source", "touched", "size", "data")
        fresh = {name: statement.excluded[name] for name in columns}
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=["owner", "key"], set_=fresh),
            [  # in one order, so that two that remember the same do not wait for each other
                {"owner": owner, "key": key, "model": row.model, "data": row.data}
                | {"source": row.source, "size": ROW + len(row.data)}
                for key, row in sorted(newest.items())
            ],
        )

    def recall(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        found: dict[str, StoredTurn] = {}
        for start in range(0, len(keys), CHUNK):
            some = memories.c.key.in_(keys[start : start + CHUNK])
            columns = memories.c.key, memories.c.model, memories.c.data, memories.c.source
            for row in self._connection.execute(
                select(*columns).where(memories.c.owner == owner, some)
            ):
                found[row.key] = StoredTurn(row.key, row.model, bytes(row.data), row.source)
        return [found[key] for key in dict.fromkeys(keys) if key in found]

    def forget(self, owner: str, sources: Sequence[str]) -> None:
        """Delete what these responses or chat completions said."""
        for start in range(0, len(sources), CHUNK):
            some = memories.c.source.in_(sources[start : start + CHUNK])
            self._connection.execute(delete(memories).where(memories.c.owner == owner, some))
