"""Remembers the tokens of stretches of text.

Between two special tokens a prompt is plain text, and the tokens of such a stretch do not depend on
what is around it. A conversation that comes back with one more turn is made of the same stretches,
so only the new ones are cut into tokens. The least recently used go first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

OVERHEAD = 300  # bytes that an entry costs besides its text and its tokens


class TokenCache:
    """Token ids by text, within a number of bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[str, array[int]] = OrderedDict()
        self.size = 0
        self.hits = self.misses = 0
        self.cached_tokens = self.encoded_tokens = 0  # since the start

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, text: str) -> Sequence[int] | None:
        found = self._entries.get(text)
        if found is None:
            self.misses += 1
            return None
        self._entries.move_to_end(text)
        self.hits += 1
        self.cached_tokens += len(found)
        return found

    def put(self, text: str, ids: Sequence[int]) -> None:
        self.encoded_tokens += len(ids)
        entry = array("i", ids)
        if _weight(text, entry) > self._most // 4:
            return
        self._drop(text)
        self._entries[text] = entry
        self.size += _weight(text, entry)
        while self.size > self._most:
            self._drop(next(iter(self._entries)))

    def _drop(self, text: str) -> None:
        entry = self._entries.pop(text, None)
        if entry is not None:
            self.size -= _weight(text, entry)


def _weight(text: str, entry: array[int]) -> int:
    return OVERHEAD + (1 if text.isascii() else 4) * len(text) + 4 * len(entry)
