"""One transaction, and what can be done in it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from dragoman.store.completions import Completions
from dragoman.store.conversations import Conversations
from dragoman.store.expiry import Sweeping
from dragoman.store.key_values import Notes
from dragoman.store.responses import Numbered, Responses
from dragoman.store.rows import RUNNING, Entry, Status, Stored
from dragoman.store.servers import Server, Servers


class Desk:
    """All rooms of the store, for one transaction of one server."""

    def __init__(self, connection: Connection, here: Server) -> None:
        self.responses = Responses(connection, here.id)
        self.conversations = Conversations(connection)
        self.completions = Completions(connection)
        self.notes = Notes(connection)
        self.servers = Servers(connection, here)
        self.sweeping = Sweeping(connection)

    def add(self, row: Stored, items: Sequence[Entry]) -> None:
        if row.status in RUNNING:
            self.servers.register()  # a response whose server nobody knows would be taken for dead
        self.responses.add(row)
        self._gain(row.owner, row.id, items)

    def finish_turn(
        self,
        owner: str,
        response: str,
        status: Status,
        body: bytes,
        items: Sequence[Entry],
        frames: Numbered,
    ) -> bool:
        if not self.responses.update(owner, response, status, body, frames):
            return False
        self._gain(owner, response, items)
        return True

    def delete(self, owner: str, response: str) -> bool:
        self.notes.forget(owner, [response])
        return self.responses.delete(owner, response)

    def delete_completion(self, owner: str, completion: str) -> bool:
        self.notes.forget(owner, [completion])
        return self.completions.delete(owner, completion)

    def delete_conversation(self, owner: str, conversation: str) -> bool:
        """Its responses stay, but what models said in it is not remembered."""
        self.notes.forget(owner, self.responses.of(owner, conversation))
        return self.conversations.delete(owner, conversation)

    def _gain(self, owner: str, response: str, items: Sequence[Entry]) -> None:
        self.responses.hold(owner, response, [item.id for item in items if item.answered])
        conversation = self.responses.conversation(owner, response) if items else None
        if conversation is not None:
            self.conversations.add_items(owner, conversation, items)
