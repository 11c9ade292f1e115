"""A cache of bounded size. This module imports nothing of ours."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A cache that drops its least recently used entries, by number, by total size, or by both.

    `measure` returns the size of an entry. An entry larger than `max_entry_size` is not stored, so
    that it does not push out all others. `on_drop` is called for every entry that is removed.
    """

    def __init__(
        self,
        *,
        max_entries: int | None = None,
        max_size: int | None = None,
        max_entry_size: int | None = None,
        measure: Callable[[K, V], int] = lambda key, value: 1,
        on_drop: Callable[[K, V], None] = lambda key, value: None,
    ) -> None:
        self.size = 0
        self._limits = max_entries, max_size, max_entry_size
        self._measure = measure
        self._on_drop = on_drop
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def values(self) -> list[V]:
        """List all values, the least recently used first."""
        return [value for value, _ in self._entries.values()]

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V) -> None:
        max_entries, max_size, max_entry_size = self._limits
        size = self._measure(key, value)
        if max_entry_size is not None and size > max_entry_size:
            return
        self.pop(key)
        self._entries[key] = value, size
        self.size += size
        while (max_entries is not None and len(self._entries) > max_entries) or (
            max_size is not None and self.size > max_size
        ):
            self.pop(next(iter(self._entries)))

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        value, size = entry
        self.size -= size
        self._on_drop(key, value)
        return value
