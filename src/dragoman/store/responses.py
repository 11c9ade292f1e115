"""Responses and their events, within one transaction.

A response that has ended never changes again: every change asks, in the statement that makes it,
that it still runs. Of two that race, the database lets one through.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    CTE,
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

from dragoman.errors import BadRequest
from dragoman.store.rows import ROW, RUNNING, Status, StoredResponse
from dragoman.store.tables import bodies, clock, frames, holders, responses, upsert

LONGEST = 10_000  # responses in one chain
CHUNK = 500  # names in one question

Numbered = Sequence[tuple[int, bytes]]


class ResponseRepository:
    """What can be done with responses, on behalf of one server."""

    def __init__(self, connection: Connection, server: str) -> None:
        self._connection = connection
        self._server = server

    def add(self, row: StoredResponse) -> None:
        self._connection.execute(
            insert(responses).values(
                id=row.id,
                owner=row.owner,
                status=row.status,
                created=row.created,
                touched=clock(self._connection),
                ended=None if row.status in RUNNING else clock(self._connection),
                server=self._server,
                previous=row.previous,
                conversation=row.conversation,
                background=row.background,
                hidden=False,
                cancel=False,
                size=2 * ROW + len(row.body) + len(row.input),
            )
        )
        texts = insert(bodies).values(response=row.id, body=row.body, input=row.input)
        self._connection.execute(texts)
        if row.previous is not None:
            self._touch(row.owner, row.previous)

    def get(self, owner: str, response: str) -> StoredResponse | None:
        found = self._connection.execute(_whole().where(_own(owner, response))).first()
        return None if found is None else _stored(found)

    def conversation(self, owner: str, response: str) -> str | None:
        asked = select(responses.c.conversation).where(_own(owner, response))
        return self._connection.execute(asked).scalar()

    def of(self, owner: str, conversation: str) -> list[str]:
        """The responses of a conversation."""
        theirs = and_(responses.c.conversation == conversation, responses.c.owner == owner)
        return list(self._connection.execute(select(responses.c.id).where(theirs)).scalars())

    def history(self, owner: str, response: str) -> list[StoredResponse] | None:
        """The chain that ends with this response, oldest first; None if there is no such one."""
        chain = _chain(owner, response)
        whole = _whole().join(chain, chain.c.id == responses.c.id).order_by(chain.c.depth.desc())
        found = [_stored(row) for row in self._connection.execute(whole)]
        if found and found[0].previous is not None:
            raise _broken(response, len(found))
        return found or None

    def _touch(self, owner: str, response: str) -> None:
        """A chain is in use; what another transaction has in its hands is so anyway."""
        link = responses.alias("link")
        links = select(link.c.id).where(link.c.id.in_(select(_chain(owner, response).c.id)))
        free = links.with_for_update(key_share=True, skip_locked=True)
        used = update(responses).where(responses.c.id.in_(free))
        self._connection.execute(used.values(touched=clock(self._connection)))

    def update(
        self, owner: str, response: str, status: Status, body: bytes, new: Numbered = ()
    ) -> bool:
        """Change it and keep its newest events; False if it is gone or has ended."""
        was = select(func.length(bodies.c.body)).where(bodies.c.response == response)
        grown = len(body) - was.scalar_subquery()
        now = clock(self._connection)
        values = {"status": status, "size": responses.c.size + grown}
        if status not in RUNNING:
            values |= {"ended": now, "touched": now}
        running = and_(_own(owner, response), responses.c.ended.is_(None))
        if not self._connection.execute(update(responses).where(running).values(values)).rowcount:
            return False
        texts = update(bodies).where(bodies.c.response == response).values(body=body)
        self._connection.execute(texts)
        self._write(response, new)
        return True

    def hold(self, owner: str, response: str, items: Sequence[str]) -> None:
        """Note what a response answered with, so that it is found by that."""
        if not items:
            return
        asked = select(func.count()).where(holders.c.response == response)
        before = self._connection.execute(asked).scalar_one()
        self._connection.execute(
            upsert(self._connection, holders).on_conflict_do_nothing(),
            [{"owner": owner, "item": item, "response": response} for item in sorted(items)],
        )
        self._grow(response, ROW * (self._connection.execute(asked).scalar_one() - before))

    def holders(self, owner: str, items: Sequence[str]) -> list[StoredResponse]:
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
        asked = select(responses.c.id).where(running).with_for_update(key_share=True)
        if self._connection.execute(asked).first() is None:
            return False
        self._write(response, new)
        return True

    def _write(self, response: str, new: Numbered) -> None:
        """Keep events that are not there yet, of a response that is locked."""
        fresh = dict(reversed(new))  # the first of two stays
        for number in self._numbers(response, list(fresh)):
            del fresh[number]
        if fresh:
            rows = [
                {"response": response, "number": number, "data": data}
                for number, data in sorted(fresh.items())
            ]
            self._connection.execute(insert(frames), rows)
            self._grow(response, sum(ROW + len(data) for data in fresh.values()))

    def _numbers(self, response: str, numbers: Sequence[int]) -> list[int]:
        """Those of these numbers that events of a response have."""
        found: list[int] = []
        for start in range(0, len(numbers), CHUNK):
            some = frames.c.number.in_(numbers[start : start + CHUNK])
            asked = select(frames.c.number).where(frames.c.response == response, some)
            found += self._connection.execute(asked).scalars()
        return found

    def _grow(self, response: str, size: int) -> None:
        grown = {"size": responses.c.size + size}
        self._connection.execute(update(responses).where(responses.c.id == response).values(grown))

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

    def running(self, server: str, limit: int) -> list[StoredResponse]:
        """Some of those that a server runs, for taking them away from it."""
        theirs = _whole().where(responses.c.server == server, responses.c.ended.is_(None))
        asked = theirs.limit(limit).with_for_update(of=responses)
        return [_stored(row) for row in self._connection.execute(asked)]


def _own(owner: str, response: str) -> ColumnElement[bool]:
    return and_(responses.c.id == response, responses.c.owner == owner)


def _whole() -> Select[Row[tuple[object, ...]]]:
    mine = [*StoredResponse.__struct_fields__]
    columns = [column for table in (responses, bodies) for column in table.c if column.name in mine]
    return select(*columns).join_from(responses, bodies, bodies.c.response == responses.c.id)


def _chain(owner: str, response: str) -> CTE:
    """A response and those that it follows, each with how far away it is."""
    start = select(responses.c.id, responses.c.previous, literal(0, Integer).label("depth"))
    chain = start.where(_own(owner, response)).cte("chain", recursive=True)
    link = and_(responses.c.id == chain.c.previous, responses.c.owner == owner)
    further = select(responses.c.id, responses.c.previous, chain.c.depth + 1)
    return chain.union_all(further.join_from(chain, responses, link).where(chain.c.depth < LONGEST))


def _broken(response: str, length: int) -> BadRequest:
    why = "the beginning of its chain has expired or was deleted"
    if length > LONGEST:
        why = f"its chain has more than {LONGEST:,} responses"
    return BadRequest(
        f"The response `{response[:80]}` cannot be gone on from: {why}.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def _stored(row: Row[tuple[object, ...]]) -> StoredResponse:
    return StoredResponse(
        id=row.id,
        owner=row.owner,
        status=row.status,
        created=row.created,
        body=bytes(row.body),
        input=bytes(row.input),
        previous=row.previous,
        conversation=row.conversation,
        background=row.background,
    )
