"""The size limits of rows, checked in the transaction that writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dragoman.errors import TooLarge
from dragoman.store.rows import ROW, StoredItem, StoreLimits

ID_LENGTH = 512  # characters of an id or key


class WriteMeter:
    """Rejects rows that are too large, and counts the bytes of the others by owner."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self.written: Counter[str] = Counter()

    def check_ids(self, ids: Iterable[str]) -> None:
        if any(len(value) > ID_LENGTH for value in ids):
            raise TooLarge(f"An id has more than {ID_LENGTH} characters, and cannot be stored.")

    def add(self, owner: str, sizes: Iterable[int]) -> None:
        """Count rows of these sizes."""
        quota = self._limits.find_limits(owner).stored_bytes
        limit = self._limits.row if quota is None else min(quota, self._limits.row)
        for size in sizes:
            if size > limit:
                raise TooLarge(
                    f"This takes {size:,} bytes, and at most {limit:,} may be stored at once. "
                    "Shorten it."
                )
            self.written[owner] += ROW + size

    def add_items(self, owner: str, items: Sequence[StoredItem]) -> None:
        self.check_ids(item.id for item in items)
        self.add(owner, (len(item.body) for item in items))
