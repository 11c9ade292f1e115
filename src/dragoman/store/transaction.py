"""One transaction of the database, as the functions that `Store` runs see it.

A transaction has one repository per kind of row. Each repository enforces ownership: every query
names an owner, and a row of another owner does not exist. If what is asked for does not exist,
methods return None, False or an empty result. Operations that touch several kinds
of rows are methods of the transaction itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection

from dragoman.store.batches.batches import BatchRepository
from dragoman.store.batches.files import FileRepository
from dragoman.store.batches.rows import StoredBatch
from dragoman.store.completions import CompletionRepository
from dragoman.store.conversations import ConversationRepository
from dragoman.store.key_values import KeyValueRepository
from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.maintenance.repository import MaintenanceRepository
from dragoman.store.responses import ResponseRepository
from dragoman.store.rows import (
    RUNNING,
    NumberedFrames,
    StoredItem,
    StoredResponse,
    StoreLimits,
)
from dragoman.store.servers import ServerProcess, ServerRepository


class Transaction:
    """All repositories, for one transaction of one server."""

    def __init__(self, connection: Connection, server: ServerProcess, limits: StoreLimits) -> None:
        self._meter = WriteMeter(limits)
        self.responses = ResponseRepository(connection, server.id, self._meter)
        self.conversations = ConversationRepository(connection, self._meter)
        self.completions = CompletionRepository(connection, self._meter)
        self.key_values = KeyValueRepository(connection, self._meter)
        self.files = FileRepository(connection, self._meter)
        self.batches = BatchRepository(connection, server.id, self._meter, self.files)
        self.servers = ServerRepository(connection, server)
        self.maintenance = MaintenanceRepository(connection, self.files)

    @property
    def bytes_written(self) -> Counter[str]:
        """The bytes written so far, by owner."""
        return self._meter.written

    def add_response(self, row: StoredResponse, items: Sequence[StoredItem] = ()) -> None:
        """Add a response. `items` are its input and output; its conversation, if any, gets them."""
        if row.status in RUNNING:
            # a running response of an unregistered server would be taken for abandoned
            self.servers.register()
        self.responses.add(row)
        self._attach_items(row, items)

    def finish_response(
        self,
        row: StoredResponse,
        items: Sequence[StoredItem] = (),
        frames: NumberedFrames = (),
    ) -> bool:
        """Store the final state of a response, its items and its last events.

        False if the response does not exist or has already ended: a final state never changes.
        """
        if not self.responses.update(row.owner, row.id, row.status, row.body, frames):
            return False
        self._attach_items(row, items)
        return True

    def delete_response(self, owner: str, response: str) -> bool:
        """Delete a response, running or not, with its events and its replayable turns."""
        self.key_values.delete_turns(owner, [response])
        return self.responses.delete(owner, response)

    def delete_completion(self, owner: str, completion: str) -> bool:
        """Delete a chat completion with its replayable turns."""
        self.key_values.delete_turns(owner, [completion])
        return self.completions.delete(owner, completion)

    def delete_conversation(self, owner: str, conversation: str) -> bool:
        """Delete a conversation and its replayable turns. Its responses stay."""
        self.key_values.delete_turns(owner, self.responses.list_ids(owner, conversation))
        return self.conversations.delete(owner, conversation)

    def claim_batches(self, counts: Counter[str], max_per_owner: int) -> list[StoredBatch]:
        """Claim batches that no live server runs; see `BatchRepository.claim`."""
        self.servers.register()  # batches of an unregistered server would be taken for abandoned
        return self.batches.claim(self.servers.list_alive(), counts, max_per_owner)

    def _attach_items(self, row: StoredResponse, items: Sequence[StoredItem]) -> None:
        self._meter.check_ids(item.id for item in items)
        outputs = [item.id for item in items if item.is_output]
        self.responses.index_output_items(row.owner, row.id, outputs)
        conversation = self.responses.get_conversation(row.owner, row.id) if items else None
        if conversation is not None:
            self.conversations.add_items(row.owner, conversation, items)
