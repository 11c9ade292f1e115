"""State that lasts, for code that must not wait for it.

`Store` is a database seen from an event loop. Every method is one transaction in a thread of the
store's own; what it did is on disk when it returns. Every row has an owner, every question names
one, and what belongs to another is not there. Where something is asked of a response or a
conversation that is not there, the answer is None, False or empty.

The library behind it takes long to import, so that is done when a store is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dragoman.errors import TooLarge
from dragoman.store.executor import StoreExecutor
from dragoman.store.maintenance import Maintenance
from dragoman.store.rows import (
    ROW,
    Status,
    StoredCompletion,
    StoredConversation,
    StoredItem,
    StoredResponse,
    StoredTurn,
    StoreLimits,
    SweepCounts,
)

Numbered = Sequence[tuple[int, bytes]]

NAME = 512  # characters of an id or key
DEFAULTS = StoreLimits()


class Store:
    """An open store. Made by `open`."""

    def __init__(self, line: StoreExecutor, chores: Maintenance, limits: StoreLimits) -> None:
        self._line = line
        self._chores = chores
        self._limits = limits

    @classmethod
    async def open(
        cls, url: str, limits: StoreLimits = DEFAULTS, *, failed: Callable[[bytes], bytes]
    ) -> Store:
        """The store at a URL: `sqlite:///path`, `sqlite://` for one in memory, `postgresql://…`.

        `failed` makes of a response's body that of a response whose server died.
        """
        line = await StoreExecutor.open(url)
        chores = Maintenance(line, limits, failed)
        try:
            await chores.start()
        except BaseException:
            await line.aclose()
            raise
        return cls(line, chores, limits)

    async def aclose(self) -> None:
        """Close it. What this server still ran has failed."""
        await self._line.settle()
        await self._chores.stop()
        await self._line.aclose()

    # responses

    async def add(self, row: StoredResponse, items: Sequence[StoredItem] = ()) -> None:
        """Keep a response. `items` are all of its turn: its conversation, if any, gains them."""
        self._check([row.id, row.owner], [len(row.body) + len(row.input)])
        self._check([item.id for item in items], [len(item.body) for item in items])
        await self._line.write(lambda desk: desk.add(row, items))

    async def get(self, owner: str, response: str) -> StoredResponse | None:
        return await self._line.read(lambda desk: desk.responses.get(owner, response))

    async def update(self, owner: str, response: str, status: Status, body: bytes) -> bool:
        """False if it is gone or has ended: a last state never changes."""
        self._check([], [len(body)])
        return await self._line.write(
            lambda desk: desk.responses.update(owner, response, status, body)
        )

    async def finish_turn(
        self,
        owner: str,
        response: str,
        status: Status,
        body: bytes,
        items: Sequence[StoredItem] = (),
        frames: Numbered = (),
    ) -> bool:
        """Like `update`, together with a turn's items for its conversation and its last events."""
        self._check([item.id for item in items], [len(item.body) for item in items])
        self._check([], [len(body), *(len(data) for _, data in frames)])
        return await self._line.write(
            lambda desk: desk.finish_turn(owner, response, status, body, items, frames)
        )

    async def holders(self, owner: str, items: Sequence[str]) -> list[StoredResponse]:
        """The responses that answered with these items."""
        return await self._line.read(lambda desk: desk.responses.holders(owner, items))

    async def delete(self, owner: str, response: str) -> bool:
        """Delete it with its events and what it said, whether it runs or not."""
        return await self._line.write(lambda desk: desk.delete(owner, response))

    async def history(self, owner: str, response: str) -> list[StoredResponse] | None:
        """The chain that ends with this response, oldest first; None if it is not there.

        A chain that has lost a link is the client's error, which says so.
        """
        return await self._line.read(lambda desk: desk.responses.history(owner, response))

    async def append(self, response: str, frames: Numbered) -> bool:
        """Keep events of a response that runs; a number is kept once. False if it does not run."""
        self._check([], [len(data) for _, data in frames])
        return await self._line.write(lambda desk: desk.responses.append(response, frames))

    async def frames(
        self, owner: str, response: str, after: int, limit: int = 1000
    ) -> list[tuple[int, bytes]]:
        return await self._line.read(
            lambda desk: desk.responses.frames(owner, response, after, limit)
        )

    async def last_frame(self, owner: str, response: str) -> tuple[int, bytes] | None:
        return await self._line.read(lambda desk: desk.responses.last_frame(owner, response))

    async def ask_cancel(self, owner: str, response: str) -> bool:
        """Ask whoever runs it to end it. False if it does not run."""
        return await self._line.write(lambda desk: desk.responses.ask_cancel(owner, response))

    async def cancels(self, responses: Sequence[str]) -> set[str]:
        """Those of these that somebody asked to end."""
        return await self._line.read(lambda desk: desk.responses.cancels(responses))

    # conversations

    async def add_conversation(
        self, row: StoredConversation, items: Sequence[StoredItem] = ()
    ) -> None:
        self._check([row.id, row.owner], [len(row.metadata)])
        self._check([item.id for item in items], [len(item.body) for item in items])
        await self._line.write(lambda desk: desk.conversations.add(row, items))

    async def get_conversation(self, owner: str, conversation: str) -> StoredConversation | None:
        return await self._line.read(lambda desk: desk.conversations.get(owner, conversation))

    async def update_conversation(
        self, owner: str, conversation: str, metadata: bytes
    ) -> StoredConversation | None:
        self._check([], [len(metadata)])
        return await self._line.write(
            lambda desk: desk.conversations.update(owner, conversation, metadata)
        )

    async def delete_conversation(self, owner: str, conversation: str) -> bool:
        return await self._line.write(lambda desk: desk.delete_conversation(owner, conversation))

    async def responses_of(self, owner: str, conversation: str) -> list[str]:
        """The ids of a conversation's responses."""
        return await self._line.read(lambda desk: desk.responses.of(owner, conversation))

    async def add_items(self, owner: str, conversation: str, items: Sequence[StoredItem]) -> bool:
        """Add items at the end; one whose id is there already stays as it is."""
        self._check([item.id for item in items], [len(item.body) for item in items])
        return await self._line.write(
            lambda desk: desk.conversations.add_items(owner, conversation, items)
        )

    async def items_named(
        self, owner: str, conversation: str, names: Sequence[str]
    ) -> dict[str, bytes]:
        """The items among these that a conversation has, by their ids."""
        return await self._line.read(
            lambda desk: desk.conversations.named(owner, conversation, names)
        )

    async def items(
        self, owner: str, conversation: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredItem] | None:
        """A page of items. `after` is the id of the last one of the page before it."""
        return await self._line.read(
            lambda desk: desk.conversations.items(owner, conversation, after, limit, newest_first)
        )

    async def item(self, owner: str, conversation: str, item: str) -> StoredItem | None:
        return await self._line.read(
            lambda desk: desk.conversations.item(owner, conversation, item)
        )

    async def delete_item(self, owner: str, conversation: str, item: str) -> bool:
        return await self._line.write(
            lambda desk: desk.conversations.delete_item(owner, conversation, item)
        )

    # chat completions

    async def add_completion(self, row: StoredCompletion) -> None:
        self._check([row.id, row.owner], [len(row.body) + len(row.messages)])
        await self._line.write(lambda desk: desk.completions.add(row))

    async def get_completion(self, owner: str, completion: str) -> StoredCompletion | None:
        return await self._line.read(lambda desk: desk.completions.get(owner, completion))

    async def change_completion(self, owner: str, completion: str, body: bytes) -> bool:
        self._check([], [len(body)])
        return await self._line.write(lambda desk: desk.completions.change(owner, completion, body))

    async def delete_completion(self, owner: str, completion: str) -> bool:
        return await self._line.write(lambda desk: desk.delete_completion(owner, completion))

    async def completions(
        self, owner: str, *, after: str | None, limit: int, newest_first: bool
    ) -> list[tuple[str, bytes]]:
        """A page of ids and bodies by age. `after` is the id of the last one of the page before."""
        return await self._line.read(
            lambda desk: desk.completions.page(owner, after, limit, newest_first)
        )

    # small things

    async def secret(self, name: str, size: int = 32) -> bytes:
        """Random bytes, made once and the same for all processes of this database."""
        return await self._line.write(lambda desk: desk.notes.secret(name, size))

    async def remember(self, owner: str, rows: Sequence[StoredTurn]) -> None:
        """Keep these; the newest of a key replaces the one before it."""
        self._check([row.key for row in rows], [len(row.data) for row in rows])
        await self._line.write(lambda desk: desk.notes.remember(owner, rows))

    async def recall(self, owner: str, keys: Sequence[str]) -> list[StoredTurn]:
        """What is kept under these keys, in their order."""
        return await self._line.read(lambda desk: desk.notes.recall(owner, keys))

    async def sweep(self) -> SweepCounts:
        """Fail what dead servers left, delete what is too old or too much."""
        return await self._chores.sweep()

    def _check(self, names: Iterable[str], sizes: Iterable[int]) -> None:
        """Refuse what is too large."""
        if any(len(name) > NAME for name in names):
            raise TooLarge("An id is too long to be kept.")
        for size in sizes:
            if size > self._limits.row:
                most = self._limits.row
                raise TooLarge(f"This is too large to be kept: the limit is {most} bytes.")
            self._chores.count(ROW + size)
