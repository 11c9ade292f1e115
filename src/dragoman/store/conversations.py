"""Conversations and their items, within one transaction.

Items have positions that only grow and are assigned while the row of their conversation is locked.
An item whose id is already in the conversation is not added again: a client may send back items
that it received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from dragoman.errors import BadRequest
from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.rows import ROW, StoredConversation, StoredItem
from dragoman.store.tables import IDS_PER_QUERY, conversations, get_current_time, items


class ConversationRepository:
    """Reads and writes conversations."""

    def __init__(self, connection: Connection, meter: WriteMeter) -> None:
        self._connection = connection
        self._meter = meter

    def add(self, row: StoredConversation, new_items: Sequence[StoredItem] = ()) -> None:
        self._meter.check_ids([row.id, row.owner])
        self._meter.add(row.owner, [len(row.metadata)])
        self._connection.execute(
            insert(conversations).values(
                id=row.id,
                owner=row.owner,
                created=row.created,
                touched=get_current_time(self._connection),
                size=ROW + len(row.metadata),
                metadata=row.metadata,
            )
        )
        self.add_items(row.owner, row.id, new_items)

    def get(self, owner: str, conversation: str) -> StoredConversation | None:
        columns = conversations.c.created, conversations.c.metadata
        query = select(*columns).where(_is_owned(owner, conversation))
        row = self._connection.execute(query).first()
        if row is None:
            return None
        return StoredConversation(
            id=conversation, owner=owner, created=row.created, metadata=bytes(row.metadata)
        )

    def update(self, owner: str, conversation: str, metadata: bytes) -> StoredConversation | None:
        self._meter.add(owner, [len(metadata)])
        growth = len(metadata) - func.length(conversations.c.metadata)
        values = {"metadata": metadata, "size": conversations.c.size + growth}
        if not self._touch(owner, conversation, values):
            return None
        return self.get(owner, conversation)

    def delete(self, owner: str, conversation: str) -> bool:
        statement = delete(conversations).where(_is_owned(owner, conversation))
        return self._connection.execute(statement).rowcount > 0

    def add_items(self, owner: str, conversation: str, new_items: Sequence[StoredItem]) -> bool:
        """Append items. An item whose id is already there stays as it is."""
        self._meter.add_items(owner, new_items)
        if not self._touch(owner, conversation, {}):
            return False
        existing = self.get_items(owner, conversation, [item.id for item in new_items])
        unique = {item.id: item for item in reversed(new_items)}  # the first of two wins
        added = [item for item in new_items if unique.get(item.id) is item]
        added = [item for item in added if item.id not in existing]
        if not added:
            return True
        last = select(func.coalesce(func.max(items.c.position), 0))
        query = last.where(items.c.conversation == conversation)
        start = self._connection.execute(query).scalar_one() + 1
        rows = [
            {"conversation": conversation, "position": position, "id": item.id, "body": item.body}
            for position, item in enumerate(added, start)
        ]
        self._connection.execute(insert(items), rows)
        growth = sum(ROW + len(item.body) for item in added)
        self._touch(owner, conversation, {"size": conversations.c.size + growth})
        return True

    def list_items(
        self, owner: str, conversation: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredItem] | None:
        """Return a page of items. `after` is the last id of the page before."""
        if self.get(owner, conversation) is None:
            return None
        query = select(items.c.id, items.c.body).where(items.c.conversation == conversation)
        if after is not None:
            position = self._get_position(conversation, after)
            query = query.where(
                items.c.position < position if newest_first else items.c.position > position
            )
        order = items.c.position.desc() if newest_first else items.c.position
        rows = self._connection.execute(query.order_by(order).limit(limit))
        return [StoredItem(row.id, bytes(row.body)) for row in rows]

    def measure_items(self, owner: str, conversation: str) -> int:
        """Return the size of all items in bytes."""
        owned = items.join(conversations, conversations.c.id == items.c.conversation)
        query = select(func.coalesce(func.sum(func.length(items.c.body)), 0)).select_from(owned)
        return int(
            self._connection.execute(query.where(_is_owned(owner, conversation))).scalar_one()
        )

    def get_item(self, owner: str, conversation: str, item: str) -> StoredItem | None:
        body = self.get_items(owner, conversation, [item]).get(item)
        return None if body is None else StoredItem(item, body)

    def get_items(self, owner: str, conversation: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the bodies of those of these items that exist, by id."""
        owned = items.join(conversations, conversations.c.id == items.c.conversation)
        query = select(items.c.id, items.c.body).select_from(owned)
        bodies: dict[str, bytes] = {}
        for start in range(0, len(ids), IDS_PER_QUERY):
            chunk = items.c.id.in_(ids[start : start + IDS_PER_QUERY])
            rows = self._connection.execute(query.where(_is_owned(owner, conversation), chunk))
            bodies |= {row.id: bytes(row.body) for row in rows}
        return bodies

    def delete_item(self, owner: str, conversation: str, item: str) -> bool:
        row = self.get_item(owner, conversation, item)
        if row is None:
            return False
        shrunk = {"size": conversations.c.size - ROW - len(row.body)}
        if not self._touch(owner, conversation, shrunk):
            return False
        statement = delete(items).where(items.c.conversation == conversation, items.c.id == item)
        return self._connection.execute(statement).rowcount > 0

    def _touch(self, owner: str, conversation: str, changes: Mapping[str, object]) -> bool:
        """Change a conversation, which locks it until the transaction ends."""
        values = {"touched": get_current_time(self._connection), **changes}
        statement = update(conversations).where(_is_owned(owner, conversation)).values(values)
        return self._connection.execute(statement).rowcount > 0

    def _get_position(self, conversation: str, item: str) -> int:
        query = select(items.c.position)
        query = query.where(items.c.conversation == conversation, items.c.id == item)
        position: int | None = self._connection.execute(query).scalar()
        if position is None:
            raise BadRequest("There is no such item in this conversation.", param="after")
        return position


def _is_owned(owner: str, conversation: str) -> ColumnElement[bool]:
    return and_(conversations.c.id == conversation, conversations.c.owner == owner)
