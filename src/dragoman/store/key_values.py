"""Values by key, within one transaction: the server's secrets, and turns of the replay cache."""

from __future__ import annotations

import secrets as random_bytes
from collections.abc import Sequence

from sqlalchemy import Connection, delete, select

from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.rows import ROW, StoredTurn
from dragoman.store.tables import IDS_PER_QUERY, get_current_time, replay_turns, secrets, upsert


class KeyValueRepository:
    """Reads and writes secrets and turns."""

    def __init__(self, connection: Connection, meter: WriteMeter) -> None:
        self._connection = connection
        self._meter = meter

    def get_or_create_secret(self, name: str, size: int = 32) -> bytes:
        """Return random bytes, created once and the same for all servers on this database."""
        values = {"name": name, "data": random_bytes.token_bytes(size)}
        self._connection.execute(
            upsert(self._connection, secrets).values(values).on_conflict_do_nothing()
        )
        data = self.get_secret(name)
        assert data is not None  # noqa: S101  # it is in the table now
        return data

    def get_secret(self, name: str) -> bytes | None:
        query = select(secrets.c.data).where(secrets.c.name == name)
        data = self._connection.execute(query).scalar()
        return None if data is None else bytes(data)

    def put_turns(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        """Store turns; a newer one replaces an older one with the same key."""
        self._meter.check_ids(row.key for row in rows)
        self._meter.add(owner, (len(row.data) for row in rows))
        newest = {row.key: row for row in rows}
        if not newest:
            return
        statement = upsert(self._connection, replay_turns).values(
            touched=get_current_time(self._connection)
        )
        columns = ("model", "source", "touched", "size", "data")
        replacement = {name: statement.excluded[name] for name in columns}
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=["owner", "key"], set_=replacement),
            [  # sorted, so that two transactions that write the same keys cannot deadlock
                {"owner": owner, "key": key, "model": row.model, "data": row.data}
                | {"source": row.source, "size": ROW + len(row.data)}
                for key, row in sorted(newest.items())
            ],
        )

    def get_turns(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        """Return the turns stored under these keys, in the order of the keys."""
        turns: dict[str, StoredTurn] = {}
        for start in range(0, len(keys), IDS_PER_QUERY):
            chunk = replay_turns.c.key.in_(keys[start : start + IDS_PER_QUERY])
            columns = (
                replay_turns.c.key,
                replay_turns.c.model,
                replay_turns.c.data,
                replay_turns.c.source,
            )
            query = select(*columns).where(replay_turns.c.owner == owner, chunk)
            for row in self._connection.execute(query):
                turns[row.key] = StoredTurn(row.key, row.model, bytes(row.data), row.source)
        return [turns[key] for key in dict.fromkeys(keys) if key in turns]

    def delete_turns(self, owner: str, sources: Sequence[str]) -> None:
        """Delete the turns that these responses or chat completions wrote."""
        for start in range(0, len(sources), IDS_PER_QUERY):
            chunk = replay_turns.c.source.in_(sources[start : start + IDS_PER_QUERY])
            self._connection.execute(
                delete(replay_turns).where(replay_turns.c.owner == owner, chunk)
            )
