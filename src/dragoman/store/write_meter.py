"""The size limits of rows, checked in the transaction that writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.errors import TooLarge
from dragoman.store.rows import ROW, StoredItem

ID_LENGTH = 512  # characters of an id or key


class WriteMeter:
    """Rejects rows that are too large, and counts the bytes of the others."""

    def __init__(self, row_limit: int) -> None:
        self._row_limit = row_limit
        self.written = 0

    def check_ids(self, ids: Iterable[str]) -> None:
        if any(len(value) > ID_LENGTH for value in ids):
            raise TooLarge("An id is too long to be stored.")

    def add(self, sizes: Iterable[int]) -> None:
        """Count rows of these sizes."""
        for size in sizes:
            if size > self._row_limit:
                raise TooLarge(
                    f"This is too large to be stored: the limit is {self._row_limit} bytes."
                )
            self.written += ROW + size

    def add_items(self, items: Sequence[StoredItem]) -> None:
        self.check_ids(item.id for item in items)
        self.add(len(item.body) for item in items)
