"""Keeps entries in memory within a number of bytes, and in a store if there is one.

What goes to the store is written later, by a task of its own: no answer waits for it. If the store
is slower than the answers, some are not written. Reading waits, but not long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from dragoman.replay.digest import ReplayEntry
from dragoman.store.rows import StoredTurn as Row

log = logging.getLogger("dragoman.memory")

OVERHEAD = 400  # bytes of an entry besides its tokens
WAITING = 1024  # entries that wait to be written
PATIENCE = 1.0  # seconds to wait for what is kept
LAST = 5.0  # seconds to write the rest at the end


class ReplayStore(Protocol):
    """A store; `store.Store` is one."""

    async def remember(self, owner: str, rows: Sequence[Row]) -> None: ...

    async def recall(self, owner: str, keys: Sequence[str]) -> Sequence[Row]: ...


class ReplayCache:
    """Entries by owner and key; the least recently used go first."""

    def __init__(self, most: int, backing: ReplayStore | None = None) -> None:
        self._most = most
        self._entries: OrderedDict[tuple[str, str], tuple[ReplayEntry, str | None]] = OrderedDict()
        self._said: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)  # by sources
        self._queue: deque[tuple[str, list[Row]]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.backing = backing
        self.size = 0
        self.dropped = 0  # entries that were not written

    def get(self, owner: str, key: str) -> ReplayEntry | None:
        found = self._entries.get((owner, key))
        if found is None:
            return None
        self._entries.move_to_end((owner, key))
        return found[0]

    def put(self, owner: str, rows: dict[str, ReplayEntry], source: str | None = None) -> None:
        """Keep what was said; `source` is the answer that it can be deleted with."""
        for key, entry in rows.items():
            self._keep(owner, key, entry, source)

    def write(
        self, owner: str, model: str, rows: dict[str, ReplayEntry], source: str | None = None
    ) -> None:
        """Put them into the store, too."""
        if self.backing is None:
            return
        if len(self._queue) >= WAITING:
            self.dropped += 1
            return
        packed = {key: msgspec.msgpack.encode(entry) for key, entry in rows.items()}
        self._queue.append((owner, [Row(key, model, packed[key], source) for key in rows]))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def fetch(self, owner: str, keys: Sequence[str]) -> None:
        """Get what is not here from the store."""
        missing = [key for key in keys if (owner, key) not in self._entries]
        if self.backing is None or not missing:
            return
        try:
            async with asyncio.timeout(PATIENCE):
                rows = await self.backing.recall(owner, missing)
            for row in rows:
                entry = msgspec.msgpack.decode(row.data, type=ReplayEntry)
                self._keep(owner, row.key, entry, row.source)
        except Exception as error:  # whatever it is, the answer can do without
            log.warning("what was said before could not be read: %s", error or type(error).__name__)

    async def forget(self, owner: str, sources: Collection[str]) -> None:
        """Drop what these said; none of it is on its way to the store when this returns."""
        gone = frozenset(sources)
        for source in gone:
            for key in self._said.pop((owner, source), ()):
                self.size -= _weight(self._entries.pop((owner, key))[0])
        waiting = [
            (who, [row for row in rows if who != owner or row.source not in gone])
            for who, rows in self._queue
        ]
        self._queue = deque((who, rows) for who, rows in waiting if rows)
        async with self._writing:
            pass

    async def aclose(self) -> None:
        """Write what waits, if that can be done soon."""
        if self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer], timeout=LAST)
            self._writer.cancel()

    def _keep(self, owner: str, key: str, entry: ReplayEntry, source: str | None) -> None:
        if (owner, key) in self._entries:
            self._drop(owner, key)
        self._entries[owner, key] = entry, source
        self._said[owner, source].add(key)
        self.size += _weight(entry)
        while self.size > self._most:
            self._drop(*next(iter(self._entries)))

    def _drop(self, owner: str, key: str) -> None:
        entry, source = self._entries.pop((owner, key))
        self.size -= _weight(entry)
        said = self._said[owner, source]
        said.discard(key)
        if not said:
            del self._said[owner, source]

    async def _write(self) -> None:
        while self._queue and self.backing is not None:
            owner, rows = self._queue.popleft()
            while self._queue and self._queue[0][0] == owner and len(rows) < WAITING:
                rows += self._queue.popleft()[1]
            try:
                async with self._writing:
                    await self.backing.remember(owner, rows)
            except Exception as error:  # the answer is told; what was said is not kept
                self.dropped += len(rows)
                log.warning("what was said could not be kept: %s", error or type(error).__name__)


def _weight(entry: ReplayEntry) -> int:
    return OVERHEAD + len(entry.opening) + len(entry.ids)
