"""Conversations and their items, within one transaction.

Items have positions that only grow, given while the row of their conversation is locked. An item
that is there already is not added again: a client may send back what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from dragoman.errors import BadRequest
from dragoman.store.rows import ROW, StoredConversation, StoredItem
from dragoman.store.tables import clock, conversations, items

CHUNK = 500  # names in one question


class ConversationRepository:
    """What can be done with conversations."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, row: StoredConversation, entries: Sequence[StoredItem]) -> None:
        self._connection.execute(
            insert(conversations).values(
                id=row.id,
                owner=row.owner,
                created=row.created,
                touched=clock(self._connection),
                size=ROW + len(row.metadata),
                metadata=row.metadata,
            )
        )
        self.add_items(row.owner, row.id, entries)

    def get(self, owner: str, conversation: str) -> StoredConversation | None:
        columns = conversations.c.created, conversations.c.metadata
        asked = select(*columns).where(_own(owner, conversation))
        row = self._connection.execute(asked).first()
        if row is None:
            return None
        metadata = bytes(row.metadata)
        return StoredConversation(
            id=conversation, owner=owner, created=row.created, metadata=metadata
        )

    def update(self, owner: str, conversation: str, metadata: bytes) -> StoredConversation | None:
        grown = len(metadata) - func.length(conversations.c.metadata)
        new = {"metadata": metadata, "size": conversations.c.size + grown}
        if not self._touch(owner, conversation, new):
            return None
        return self.get(owner, conversation)

    def delete(self, owner: str, conversation: str) -> bool:
        done = self._connection.execute(delete(conversations).where(_own(owner, conversation)))
        return done.rowcount > 0

    def add_items(self, owner: str, conversation: str, entries: Sequence[StoredItem]) -> bool:
        if not self._touch(owner, conversation, {}):
            return False
        known = self.named(owner, conversation, [entry.id for entry in entries])
        unique = {entry.id: entry for entry in reversed(entries)}  # the first of two stays
        new = [entry for entry in entries if unique.get(entry.id) is entry]
        new = [entry for entry in new if entry.id not in known]
        if not new:
            return True
        last = select(func.coalesce(func.max(items.c.position), 0))
        asked = last.where(items.c.conversation == conversation)
        start = self._connection.execute(asked).scalar_one() + 1
        rows = [
            {"conversation": conversation, "position": place, "id": entry.id, "body": entry.body}
            for place, entry in enumerate(new, start)
        ]
        self._connection.execute(insert(items), rows)
        grown = sum(ROW + len(entry.body) for entry in new)
        self._touch(owner, conversation, {"size": conversations.c.size + grown})
        return True

    def items(
        self, owner: str, conversation: str, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredItem] | None:
        if self.get(owner, conversation) is None:
            return None
        asked = select(items.c.id, items.c.body).where(items.c.conversation == conversation)
        if after is not None:
            place = self._place(conversation, after)
            asked = asked.where(
                items.c.position < place if newest_first else items.c.position > place
            )
        order = items.c.position.desc() if newest_first else items.c.position
        found = self._connection.execute(asked.order_by(order).limit(limit))
        return [StoredItem(row.id, bytes(row.body)) for row in found]

    def item(self, owner: str, conversation: str, item: str) -> StoredItem | None:
        owned = items.join(conversations, conversations.c.id == items.c.conversation)
        asked = select(items.c.body).select_from(owned)
        asked = asked.where(_own(owner, conversation), items.c.id == item)
        body = self._connection.execute(asked).scalar()
        return None if body is None else StoredItem(item, bytes(body))

    def delete_item(self, owner: str, conversation: str, item: str) -> bool:
        entry = self.item(owner, conversation, item)
        if entry is None:
            return False
        shrunk = {"size": conversations.c.size - ROW - len(entry.body)}
        if not self._touch(owner, conversation, shrunk):
            return False
        gone = delete(items).where(items.c.conversation == conversation, items.c.id == item)
        return self._connection.execute(gone).rowcount > 0

    def _touch(self, owner: str, conversation: str, new: Mapping[str, Any]) -> bool:
        """Change a conversation, and lock it until the transaction ends."""
        values = {"touched": clock(self._connection), **new}
        done = update(conversations).where(_own(owner, conversation)).values(values)
        return self._connection.execute(done).rowcount > 0

    def named(self, owner: str, conversation: str, names: Sequence[str]) -> dict[str, bytes]:
        """The items among these that are there, by their ids."""
        owned = items.join(conversations, conversations.c.id == items.c.conversation)
        asked = select(items.c.id, items.c.body).select_from(owned)
        found: dict[str, bytes] = {}
        for start in range(0, len(names), CHUNK):
            some = items.c.id.in_(names[start : start + CHUNK])
            rows = self._connection.execute(asked.where(_own(owner, conversation), some))
            found |= {row.id: bytes(row.body) for row in rows}
        return found

    def _place(self, conversation: str, item: str) -> int:
        asked = select(items.c.position)
        asked = asked.where(items.c.conversation == conversation, items.c.id == item)
        place: int | None = self._connection.execute(asked).scalar()
        if place is None:
            raise BadRequest("There is no such item in this conversation.", param="after")
        return place


def _own(owner: str, conversation: str) -> ColumnElement[bool]:
    return and_(conversations.c.id == conversation, conversations.c.owner == owner)
