"""A bounded queue of compiles that wait for a worker, served owner by owner.

Owners take turns, each with its oldest compile, so that a flood of specs from one delays another by
one compile at most. When the queue is full, an owner with fewer compiles displaces the newest one
of the owner with the most.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class OwnedItem(Protocol):
    """An item of the queue, which has the cache scope of its owner."""

    @property
    def scope(self) -> str: ...


T = TypeVar("T", bound=OwnedItem)


class CompileQueue(Generic[T]):
    """A queue of bounded length."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: dict[str, dict[T, None]] = {}  # by owner, whose turn is next first
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for items in self._waiting.values():
            yield from items

    def push(self, item: T) -> T | None:
        """Add an item; if the queue is full, return the one that must leave, maybe this one."""
        excess = self._find_excess(item.scope) if self._length >= self.limit else None
        if self._length >= self.limit and excess is None:
            return item
        if excess is not None:
            self.remove(excess)
        self._waiting.setdefault(item.scope, {})[item] = None
        self._length += 1
        return excess

    def pop(self) -> T:
        """Remove and return the item whose turn it is."""
        scope, items = next(iter(self._waiting.items()))
        item = next(iter(items))
        self.remove(item)
        if items:  # its owner's next turn comes after those of all others
            self._waiting[scope] = self._waiting.pop(scope)
        return item

    def remove(self, item: T) -> None:
        items = self._waiting[item.scope]
        del items[item]
        self._length -= 1
        if not items:
            del self._waiting[item.scope]

    def clear(self) -> None:
        self._waiting.clear()
        self._length = 0

    def _find_excess(self, scope: str) -> T | None:
        """Return the newest item of the owner with the most, if it has more than this owner."""
        most = max(self._waiting.values(), key=len, default=None)
        own = len(self._waiting.get(scope, ()))
        if most is None or len(most) <= own + 1:
            return None
        return next(reversed(most))
