"""Holds stored turns in memory up to a number of bytes, and in a database if there is one.

A separate task writes to the database, so that no answer waits for it. If the database is too slow,
some entries are not written. Reads have a short timeout and pause after a failure, so that a
database that hangs delays only a few requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias

import msgspec

from dragoman.replay.digest import ReplayEntry
from dragoman.store.rows import StoredTurn
from dragoman.types.bounded_cache import BoundedCache

log = logging.getLogger("dragoman.replay")

ENTRY_OVERHEAD = 400  # bytes of an entry besides its tokens
MAX_QUEUED = 1024  # entries that may wait to be written
READ_TIMEOUT = 1.0  # seconds
READ_PAUSE = 10.0  # seconds without reading after it failed
CLOSE_TIMEOUT = 5.0  # seconds to write queued entries when the server stops

OwnerKey: TypeAlias = tuple[str, str]  # an owner and a key
SourcedEntry: TypeAlias = tuple[ReplayEntry, str | None]  # an entry and its response's id


class ReplayStore(Protocol):
    """A database of turns; `store.Store` is one."""

    async def save_turns(self, owner: str, rows: Sequence[StoredTurn]) -> None: ...

    async def load_turns(self, owner: str, keys: Sequence[str]) -> Sequence[StoredTurn]: ...


class ReplayCache:
    """Entries by owner and key. The least recently used ones are dropped first."""

    def __init__(self, max_bytes: int, store: ReplayStore | None = None) -> None:
        self._entries = BoundedCache[OwnerKey, SourcedEntry](
            max_size=max_bytes, measure=_measure_entry, on_drop=self._remove_key
        )
        self._keys_by_source: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)
        self._queue: deque[tuple[str, list[StoredTurn]]] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self.store = store
        self._read_again_at = float("-inf")
        self.dropped = 0  # entries that were not written

    def get(self, owner: str, key: str) -> ReplayEntry | None:
        sourced = self._entries.get((owner, key))
        return None if sourced is None else sourced[0]

    @property
    def size(self) -> int:
        """The size of all entries in bytes."""
        return self._entries.size

    def put(self, owner: str, entries: dict[str, ReplayEntry], source: str | None = None) -> None:
        """Add entries; `source` is the response that they are deleted with."""
        for key, entry in entries.items():
            self._add(owner, key, entry, source)

    def write(
        self, owner: str, model: str, entries: dict[str, ReplayEntry], source: str | None = None
    ) -> None:
        """Queue entries to be written to the database."""
        if self.store is None:
            return
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            return
        rows = [
            StoredTurn(key, model, msgspec.msgpack.encode(entry), source)
            for key, entry in entries.items()
        ]
        self._queue.append((owner, rows))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_queue())

    async def fetch(self, owner: str, keys: Sequence[str]) -> None:
        """Load the entries that are not in memory from the database."""
        missing = [key for key in keys if (owner, key) not in self._entries]
        if self.store is None or not missing or time.monotonic() < self._read_again_at:
            return
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                rows = await self.store.load_turns(owner, missing)
            for row in rows:
                entry = msgspec.msgpack.decode(row.data, type=ReplayEntry)
                self._add(owner, row.key, entry, row.source)
        except Exception as error:  # any failure only means that these turns are not replayed
            self._read_again_at = time.monotonic() + READ_PAUSE
            log.warning("cannot read earlier turns: %s", str(error) or type(error).__name__)

    async def drop_entries(self, owner: str, sources: Collection[str]) -> None:
        """Drop the entries of these responses. When this returns, none of them is being written."""
        dropped = frozenset(sources)
        for source in dropped:
            for key in list(self._keys_by_source.get((owner, source), ())):
                self._entries.pop((owner, key))
        queued = [
            (row_owner, [row for row in rows if row_owner != owner or row.source not in dropped])
            for row_owner, rows in self._queue
        ]
        self._queue = deque((row_owner, rows) for row_owner, rows in queued if rows)
        async with self._writing:
            pass

    async def aclose(self) -> None:
        """Write the queued entries, for a limited time."""
        if self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer], timeout=CLOSE_TIMEOUT)
            self._writer.cancel()

    def _add(self, owner: str, key: str, entry: ReplayEntry, source: str | None) -> None:
        self._entries.pop((owner, key))
        self._keys_by_source[owner, source].add(key)
        self._entries.put((owner, key), (entry, source))

    def _remove_key(self, owner_key: OwnerKey, sourced: SourcedEntry) -> None:
        (owner, key), (_, source) = owner_key, sourced
        keys = self._keys_by_source[owner, source]
        keys.discard(key)
        if not keys:
            del self._keys_by_source[owner, source]

    async def _write_queue(self) -> None:
        while self._queue and self.store is not None:
            owner, rows = self._queue.popleft()
            while self._queue and self._queue[0][0] == owner and len(rows) < MAX_QUEUED:
                rows += self._queue.popleft()[1]
            try:
                async with self._writing:
                    await self.store.save_turns(owner, rows)
            except Exception as error:  # the client has its answer; only the replay is lost
                self.dropped += len(rows)
                log.warning("cannot store turns for replay: %s", str(error) or type(error).__name__)


def _measure_entry(owner_key: OwnerKey, sourced: SourcedEntry) -> int:
    entry, _ = sourced
    return ENTRY_OVERHEAD + len(entry.opening) + len(entry.ids)
