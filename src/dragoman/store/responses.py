"""Responses and their events, within one transaction.

A response that has ended never changes again: every change asks, in the statement that makes it,
that it still runs. Of two that race, the database lets one through.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    and_,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from dragoman.store.rows import RUNNING, Status, Stored
from dragoman.store.tables import bodies, clock, frames, holders, responses, upsert

LONGEST = 10_000  # responses in one chain
CHUNK = 500  # names in one question

Numbered = Sequence[tuple[int, bytes]]


class Responses:
    """What can be done with responses, on behalf of one server."""

    def __init__(self, connection: Connection, server: str) -> None:
        self._connection = connection
        self._server = server

    def add(self, row: Stored) -> None:
        self._connection.execute(
            insert(responses).values(
                id=row.id,
                owner=row.owner,
                status=row.status,
                created=row.created,
                ended=None if row.status in RUNNING else clock(self._connection),
                server=self._server,
                previous=row.previous,
                conversation=row.conversation,
                background=row.background,
                hidden=row.hidden,
                cancel=False,
                size=len(row.body) + len(row.input),
            )
        )
        texts = insert(bodies).values(response=row.id, body=row.body, input=row.input)
        self._connection.execute(texts)

    def get(self, owner: str, response: str) -> Stored | None:
        found = self._connection.execute(_whole().where(_own(owner, response))).first()
        return None if found is None else _stored(found)

    def conversation(self, owner: str, response: str) -> str | None:
        asked = select(responses.c.conversation).where(_own(owner, response))
        return self._connection.execute(asked).scalar()

    def history(self, owner: str, response: str) -> list[Stored] | None:
        """The chain that ends with this response, oldest first; None if a link is missing."""
        start = select(responses.c.id, responses.c.previous, literal(0, Integer).label("depth"))
        chain = start.where(_own(owner, response)).cte("chain", recursive=True)
        link = and_(responses.c.id == chain.c.previous, responses.c.owner == owner)
        further = select(responses.c.id, responses.c.previous, chain.c.depth + 1)
        chain = chain.union_all(
            further.join_from(chain, responses, link).where(chain.c.depth < LONGEST)
        )
        whole = _whole().join(chain, chain.c.id == responses.c.id).order_by(chain.c.depth.desc())
        found = [_stored(row) for row in self._connection.execute(whole)]
        return found if found and found[0].previous is None else None

    def update(
        self, owner: str, response: str, status: Status, body: bytes, new: Numbered = ()
    ) -> bool:
        """Change it and keep its newest events; False if it is gone or has ended."""
        ending = status not in RUNNING
        values = {"status": status, **({"ended": clock(self._connection)} if ending else {})}
        running = and_(_own(owner, response), responses.c.ended.is_(None))
        if not self._connection.execute(update(responses).where(running).values(values)).rowcount:
            return False
        texts = update(bodies).where(bodies.c.response == response).values(body=body)
        self._connection.execute(texts)
        self._write(response, new)
        if ending:
            self._measure(response)
        return True

    def hold(self, owner: str, response: str, items: Sequence[str]) -> None:
        """Note what a response answered with, so that it is found by that."""
        if items:
            self._connection.execute(
                upsert(self._connection, holders).on_conflict_do_nothing(),
                [{"owner": owner, "item": item, "response": response} for item in sorted(items)],
            )

    def holders(self, owner: str, items: Sequence[str]) -> list[Stored]:
        names: set[str] = set()
        for start in range(0, len(items), CHUNK):
            some = and_(holders.c.owner == owner, holders.c.item.in_(items[start : start + CHUNK]))
            asked = select(holders.c.response).where(some).distinct()
            names.update(self._connection.execute(asked).scalars())
        found = (self.get(owner, name) for name in sorted(names))
        return [row for row in found if row is not None]

    def delete(self, owner: str, response: str) -> bool:
        done = self._connection.execute(delete(responses).where(_own(owner, response)))
        return done.rowcount > 0

    def append(self, response: str, new: Numbered) -> bool:
        """False if it is gone or has ended. A number that is there already keeps its event."""
        running = and_(responses.c.id == response, responses.c.ended.is_(None))
        asked = select(responses.c.id).where(running).with_for_update(read=True)
        if self._connection.execute(asked).first() is None:
            return False
        self._write(response, new)
        return True

    def _write(self, response: str, new: Numbered) -> None:
        if new:
            self._connection.execute(
                upsert(self._connection, frames).on_conflict_do_nothing(),
                [{"response": response, "number": number, "data": data} for number, data in new],
            )

    def frames(self, owner: str, response: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        asked = (
            select(frames.c.number, frames.c.data)
            .join(responses, responses.c.id == frames.c.response)
            .where(_own(owner, response), frames.c.number > after)
            .order_by(frames.c.number)
            .limit(limit)
        )
        return [(row.number, bytes(row.data)) for row in self._connection.execute(asked)]

    def last_frame(self, owner: str, response: str) -> tuple[int, bytes] | None:
        asked = (
            select(frames.c.number, frames.c.data)
            .join(responses, responses.c.id == frames.c.response)
            .where(_own(owner, response))
            .order_by(frames.c.number.desc())
            .limit(1)
        )
        row = self._connection.execute(asked).first()
        return None if row is None else (row.number, bytes(row.data))

    def ask_cancel(self, owner: str, response: str) -> bool:
        running = and_(_own(owner, response), responses.c.ended.is_(None))
        asked = update(responses).where(running).values(cancel=True)
        return self._connection.execute(asked).rowcount > 0

    def cancels(self, names: Sequence[str]) -> set[str]:
        found: set[str] = set()
        for start in range(0, len(names), CHUNK):
            some = responses.c.id.in_(names[start : start + CHUNK])
            asked = select(responses.c.id).where(some, responses.c.cancel)
            found.update(self._connection.execute(asked).scalars())
        return found

    def running(self, server: str, limit: int) -> list[Stored]:
        """Some of those that a server runs, for taking them away from it."""
        theirs = _whole().where(responses.c.server == server, responses.c.ended.is_(None))
        asked = theirs.limit(limit).with_for_update(of=responses)
        return [_stored(row) for row in self._connection.execute(asked)]

    def _measure(self, response: str) -> None:
        """Count what an ended response takes. Events are not counted one by one as they come."""
        events = select(func.coalesce(func.sum(func.length(frames.c.data)), 0))
        texts = select(func.length(bodies.c.body) + func.length(bodies.c.input))
        size = (
            events.where(frames.c.response == response).scalar_subquery()
            + texts.where(bodies.c.response == response).scalar_subquery()
        )
        counted = update(responses).where(responses.c.id == response).values(size=size)
        self._connection.execute(counted)


def _own(owner: str, response: str) -> ColumnElement[bool]:
    return and_(responses.c.id == response, responses.c.owner == owner)


def _whole() -> Select[Row[tuple[object, ...]]]:
    columns = (column for column in responses.c if column.name not in ("server", "cancel", "size"))
    texts = bodies.c.body, bodies.c.input
    return select(*columns, *texts).join(bodies, bodies.c.response == responses.c.id)


def _stored(row: Row[tuple[object, ...]]) -> Stored:
    return Stored(
        id=row.id,
        owner=row.owner,
        status=row.status,
        created=row.created,
        body=bytes(row.body),
        input=bytes(row.input),
        previous=row.previous,
        conversation=row.conversation,
        background=row.background,
        hidden=row.hidden,
    )
