"""Caches the token ids of plain text between special tokens.

The tokens of such a text do not depend on what surrounds it. A conversation that comes back with
one more turn consists of the same texts, so only the new ones are encoded. The least recently used
entries go first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

ENTRY_OVERHEAD = 300  # bytes of an entry besides its text and its tokens


class TokenCache:
    """Token ids by text, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, array[int]] = OrderedDict()
        self.size = 0
        self.hits = self.misses = 0
        self.cached_tokens = self.encoded_tokens = 0  # since the start

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, text: str) -> Sequence[int] | None:
        ids = self._entries.get(text)
        if ids is None:
            self.misses += 1
            return None
        self._entries.move_to_end(text)
        self.hits += 1
        self.cached_tokens += len(ids)
        return ids

    def put(self, text: str, ids: Sequence[int]) -> None:
        self.encoded_tokens += len(ids)
        entry = array("i", ids)
        if _size(text, entry) > self._max_bytes // 4:
            return
        self._drop(text)
        self._entries[text] = entry
        self.size += _size(text, entry)
        while self.size > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, text: str) -> None:
        entry = self._entries.pop(text, None)
        if entry is not None:
            self.size -= _size(text, entry)


def _size(text: str, entry: array[int]) -> int:
    return ENTRY_OVERHEAD + (1 if text.isascii() else 4) * len(text) + 4 * len(entry)
