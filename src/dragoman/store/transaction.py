"""One transaction, and what can be done in it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from dragoman.store.completions import CompletionRepository
from dragoman.store.conversations import ConversationRepository
from dragoman.store.expiry import ExpiryRepository
from dragoman.store.key_values import KeyValueRepository
from dragoman.store.responses import Numbered, ResponseRepository
from dragoman.store.rows import RUNNING, Status, StoredItem, StoredResponse
from dragoman.store.servers import ServerProcess, ServerRepository


class Transaction:
    """All rooms of the store, for one transaction of one server."""

    def __init__(self, connection: Connection, here: ServerProcess) -> None:
        self.responses = ResponseRepository(connection, here.id)
        self.conversations = ConversationRepository(connection)
        self.completions = CompletionRepository(connection)
        self.notes = KeyValueRepository(connection)
        self.servers = ServerRepository(connection, here)
        self.sweeping = ExpiryRepository(connection)

    def add(self, row: StoredResponse, items: Sequence[StoredItem]) -> None:
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
        items: Sequence[StoredItem],
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

    def _gain(self, owner: str, response: str, items: Sequence[StoredItem]) -> None:
        self.responses.hold(owner, response, [item.id for item in items if item.is_output])
        conversation = self.responses.conversation(owner, response) if items else None
        if conversation is not None:
            self.conversations.add_items(owner, conversation, items)
