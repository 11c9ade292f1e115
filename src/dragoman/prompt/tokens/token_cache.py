"""Caches the token ids of plain text between special tokens.

The tokens of such a text do not depend on what surrounds it. A conversation that comes back with
one more turn consists of the same texts, so only the new ones are encoded. The least recently used
entries are dropped first.

Encoding a long text takes milliseconds, so response times reveal whether a text was cached. Entries
are therefore separated by cache scope (`types.cache_scope`): one owner never gets the entries of
another.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from dragoman.types.bounded_cache import BoundedCache
from dragoman.types.cache_scope import get_cache_scope

YIELD_AFTER = 4_000  # characters to encode before other tasks get to run
ENTRY_OVERHEAD = 300  # bytes of an entry besides its text and its tokens


class EncodingWork:
    """The work done on the event loop since it last got to run, in characters."""

    def __init__(self) -> None:
        self._done = 0

    async def add(self, characters: int) -> None:
        self._done += characters
        if self._done > YIELD_AFTER:
            self._done = 0
            await asyncio.sleep(0)


class TokenCache:
    """Token ids by cache scope and text, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._entries: BoundedCache[tuple[str, str], array[int]] = BoundedCache(
            max_size=max_bytes, max_entry_size=max_bytes // 4, measure=_measure_entry
        )
        self.work = EncodingWork()
        self.hits = self.misses = 0
        self.cached_tokens = self.encoded_tokens = 0  # since the start

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """The size of all entries in bytes."""
        return self._entries.size

    def get(self, text: str) -> Sequence[int] | None:
        ids = self._entries.get((get_cache_scope(), text))
        if ids is None:
            self.misses += 1
            return None
        self.hits += 1
        self.cached_tokens += len(ids)
        return ids

    def put(self, text: str, ids: Sequence[int]) -> None:
        self.encoded_tokens += len(ids)
        self._entries.put((get_cache_scope(), text), array("i", ids))


def _measure_entry(key: tuple[str, str], ids: array[int]) -> int:
    text = key[1]
    return ENTRY_OVERHEAD + (1 if text.isascii() else 4) * len(text) + 4 * len(ids)
