"""Responses and their events, within one transaction.

A response that has ended never changes again: every update requires, in the same statement, that
the response is still running. If two updates race, the database lets one of them through.
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

from dragoman.errors import BadRequest, PreviousResponseNotFound, shorten_id
from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.rows import ROW, RUNNING, NumberedFrames, Status, StoredResponse
from dragoman.store.tables import (
    IDS_PER_QUERY,
    bodies,
    frames,
    get_current_time,
    holders,
    responses,
    upsert,
)

MAX_CHAIN = 10_000  # responses in one history


class ResponseRepository:
    """Reads and writes responses, on behalf of one server."""

    def __init__(self, connection: Connection, server: str, meter: WriteMeter) -> None:
        self._connection = connection
        self._server = server
        self._meter = meter

    def add(self, row: StoredResponse) -> None:
        self._meter.check_ids([row.id, row.owner])
        self._meter.add(row.owner, [len(row.body) + len(row.input)])
        now = get_current_time(self._connection)
        self._connection.execute(
            insert(responses).values(
                id=row.id,
                owner=row.owner,
                status=row.status,
                created=row.created,
                touched=now,
                ended=None if row.status in RUNNING else now,
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
            self._touch_chain(row.owner, row.previous)

    def get(self, owner: str, response: str) -> StoredResponse | None:
        row = self._connection.execute(_select_rows().where(_is_owned(owner, response))).first()
        return None if row is None else _to_stored(row)

    def get_conversation(self, owner: str, response: str) -> str | None:
        """Return the id of the conversation that a response belongs to."""
        query = select(responses.c.conversation).where(_is_owned(owner, response))
        return self._connection.execute(query).scalar()

    def list_ids(self, owner: str, conversation: str) -> list[str]:
        """Return the ids of a conversation's responses."""
        owned = and_(responses.c.conversation == conversation, responses.c.owner == owner)
        return list(self._connection.execute(select(responses.c.id).where(owned)).scalars())

    def get_history(self, owner: str, response: str) -> list[StoredResponse] | None:
        """Return the chain that ends with this response, oldest first; None if it does not exist.

        A chain with a missing link is a `BadRequest` that says so.
        """
        chain = _select_chain(owner, response)
        query = (
            _select_rows().join(chain, chain.c.id == responses.c.id).order_by(chain.c.depth.desc())
        )
        history = [_to_stored(row) for row in self._connection.execute(query)]
        if history and history[0].previous is not None:
            raise _make_incomplete_chain_error(response, len(history))
        return history or None

    def measure_history(self, owner: str, response: str) -> int:
        """Return the size of the chain that ends with this response, in bytes."""
        chain = _select_chain(owner, response)
        query = select(func.coalesce(func.sum(responses.c.size), 0)).join(
            chain, chain.c.id == responses.c.id
        )
        return int(self._connection.execute(query).scalar_one())

    def _touch_chain(self, owner: str, response: str) -> None:
        """Renew a chain; rows that another transaction has locked are in use anyway."""
        link = responses.alias("link")
        links = select(link.c.id).where(link.c.id.in_(select(_select_chain(owner, response).c.id)))
        unlocked = links.with_for_update(key_share=True, skip_locked=True)
        statement = update(responses).where(responses.c.id.in_(unlocked))
        self._connection.execute(statement.values(touched=get_current_time(self._connection)))

    def update(
        self,
        owner: str,
        response: str,
        status: Status,
        body: bytes,
        new_frames: NumberedFrames = (),
    ) -> bool:
        """Change a response and add events; False if it does not exist or has ended."""
        self._meter.add(owner, [len(body), *(len(data) for _, data in new_frames)])
        old_length = select(func.length(bodies.c.body)).where(bodies.c.response == response)
        growth = len(body) - old_length.scalar_subquery()
        now = get_current_time(self._connection)
        values = {"status": status, "size": responses.c.size + growth}
        if status not in RUNNING:
            values |= {"ended": now, "touched": now}
        running = and_(_is_owned(owner, response), responses.c.ended.is_(None))
        if not self._connection.execute(update(responses).where(running).values(values)).rowcount:
            return False
        texts = update(bodies).where(bodies.c.response == response).values(body=body)
        self._connection.execute(texts)
        self._insert_frames(response, new_frames)
        return True

    def index_output_items(self, owner: str, response: str, items: Sequence[str]) -> None:
        """Make a response findable by the ids of its output items."""
        if not items:
            return
        query = select(func.count()).where(holders.c.response == response)
        before = self._connection.execute(query).scalar_one()
        self._connection.execute(
            upsert(self._connection, holders).on_conflict_do_nothing(),
            [{"owner": owner, "item": item, "response": response} for item in sorted(items)],
        )
        self._add_size(response, ROW * (self._connection.execute(query).scalar_one() - before))

    def find_by_output_items(self, owner: str, items: Sequence[str]) -> list[StoredResponse]:
        """Return the responses that have these items in their output."""
        ids: set[str] = set()
        for start in range(0, len(items), IDS_PER_QUERY):
            chunk = holders.c.item.in_(items[start : start + IDS_PER_QUERY])
            query = select(holders.c.response).where(holders.c.owner == owner, chunk).distinct()
            ids.update(self._connection.execute(query).scalars())
        rows = (self.get(owner, response) for response in sorted(ids))
        return [row for row in rows if row is not None]

    def delete(self, owner: str, response: str) -> bool:
        """Delete a response, running or not, with its events."""
        statement = delete(responses).where(_is_owned(owner, response))
        return self._connection.execute(statement).rowcount > 0

    def append_frames(self, response: str, new_frames: NumberedFrames) -> bool:
        """Add events of a running response; False if it does not exist or has ended.

        An event whose number exists already is not replaced.
        """
        running = and_(responses.c.id == response, responses.c.ended.is_(None))
        query = select(responses.c.owner).where(running).with_for_update(key_share=True)
        row = self._connection.execute(query).first()
        if row is None:
            return False
        self._meter.add(row.owner, (len(data) for _, data in new_frames))
        self._insert_frames(response, new_frames)
        return True

    def _insert_frames(self, response: str, new_frames: NumberedFrames) -> None:
        """Insert the events that do not exist yet, of a response that is locked."""
        missing = dict(reversed(new_frames))  # the first of two wins
        for number in self._select_existing(response, list(missing)):
            del missing[number]
        if missing:
            rows = [
                {"response": response, "number": number, "data": data}
                for number, data in sorted(missing.items())
            ]
            self._connection.execute(insert(frames), rows)
            self._add_size(response, sum(ROW + len(data) for data in missing.values()))

    def _select_existing(self, response: str, numbers: Sequence[int]) -> list[int]:
        """Return those of these numbers that events of a response already have."""
        existing: list[int] = []
        for start in range(0, len(numbers), IDS_PER_QUERY):
            chunk = frames.c.number.in_(numbers[start : start + IDS_PER_QUERY])
            query = select(frames.c.number).where(frames.c.response == response, chunk)
            existing += self._connection.execute(query).scalars()
        return existing

    def _add_size(self, response: str, size: int) -> None:
        values = {"size": responses.c.size + size}
        self._connection.execute(update(responses).where(responses.c.id == response).values(values))

    def list_frames(
        self, owner: str, response: str, after: int, limit: int = 1000
    ) -> list[tuple[int, bytes]]:
        """Return the events after a number, in order."""
        query = _select_frames(owner, response).where(frames.c.number > after)
        rows = self._connection.execute(query.order_by(frames.c.number).limit(limit))
        return [(row.number, bytes(row.data)) for row in rows]

    def get_last_frame(self, owner: str, response: str) -> tuple[int, bytes] | None:
        query = _select_frames(owner, response).order_by(frames.c.number.desc()).limit(1)
        row = self._connection.execute(query).first()
        return None if row is None else (row.number, bytes(row.data))

    def request_cancel(self, owner: str, response: str) -> bool:
        """Ask the server that runs a response to cancel it. False if it is not running."""
        running = and_(_is_owned(owner, response), responses.c.ended.is_(None))
        statement = update(responses).where(running).values(cancel=True)
        return self._connection.execute(statement).rowcount > 0

    def list_cancel_requests(self, ids: Sequence[str]) -> set[str]:
        """Return those of these responses that a client asked to cancel."""
        cancelled: set[str] = set()
        for start in range(0, len(ids), IDS_PER_QUERY):
            chunk = responses.c.id.in_(ids[start : start + IDS_PER_QUERY])
            query = select(responses.c.id).where(chunk, responses.c.cancel)
            cancelled.update(self._connection.execute(query).scalars())
        return cancelled

    def lock_running(self, server: str, limit: int) -> list[StoredResponse]:
        """Lock and return some of the responses that a server is running."""
        running = _select_rows().where(responses.c.server == server, responses.c.ended.is_(None))
        query = running.limit(limit).with_for_update(of=responses)
        return [_to_stored(row) for row in self._connection.execute(query)]


def _is_owned(owner: str, response: str) -> ColumnElement[bool]:
    return and_(responses.c.id == response, responses.c.owner == owner)


def _select_rows() -> Select[Row[tuple[object, ...]]]:
    wanted = StoredResponse.__struct_fields__
    columns = [
        column for table in (responses, bodies) for column in table.c if column.name in wanted
    ]
    return select(*columns).join_from(responses, bodies, bodies.c.response == responses.c.id)


def _select_frames(owner: str, response: str) -> Select[tuple[int, bytes]]:
    query = select(frames.c.number, frames.c.data)
    owned = query.join(responses, responses.c.id == frames.c.response)
    return owned.where(_is_owned(owner, response))


def _select_chain(owner: str, response: str) -> CTE:
    """Return a response and those that it follows, each with its distance."""
    start = select(responses.c.id, responses.c.previous, literal(0, Integer).label("depth"))
    chain = start.where(_is_owned(owner, response)).cte("chain", recursive=True)
    link = and_(responses.c.id == chain.c.previous, responses.c.owner == owner)
    previous = select(responses.c.id, responses.c.previous, chain.c.depth + 1)
    return chain.union_all(
        previous.join_from(chain, responses, link).where(chain.c.depth < MAX_CHAIN)
    )


def _make_incomplete_chain_error(response: str, length: int) -> BadRequest:
    reason = "the beginning of its history has expired or was deleted"
    if length > MAX_CHAIN:
        reason = f"its history has more than {MAX_CHAIN:,} responses"
    return PreviousResponseNotFound(
        f"The response `{shorten_id(response)}` cannot be continued: {reason}.",
        param="previous_response_id",
    )


def _to_stored(row: Row[tuple[object, ...]]) -> StoredResponse:
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
