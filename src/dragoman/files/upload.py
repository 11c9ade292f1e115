"""One upload, written to the store as it arrives.

The content is written in chunks, each in a transaction that also checks the limits of the owner. A
file is visible once `finish` has returned; until then nobody can read it, and if the server dies, a
sweep deletes what was written.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from dragoman.errors import QuotaExceeded, StoreUnavailable, TooLarge
from dragoman.store.batches.rows import StoredFile
from dragoman.types.limits import FindLimits, find_no_limits

if TYPE_CHECKING:
    from dragoman.store.store import Store
    from dragoman.store.transaction import Transaction

T = TypeVar("T")

CHUNK_BYTES = 256 << 10
UPLOAD_SECONDS = 6 * 3600.0  # after which an upload that did not end is deleted


class FileLimits(Struct, frozen=True, kw_only=True):
    """How large files may be, and how long they are stored. Bytes and seconds."""

    file: int = 200 << 20
    owner: int = 512 << 20  # all files of one owner
    total: int = 1 << 30  # all files
    ttl: float = 30 * 24 * 3600.0
    find_limits: FindLimits = find_no_limits

    def get_quota(self, owner: str) -> int:
        stored = self.find_limits(owner).stored_bytes
        return self.owner if stored is None else min(stored, self.owner)

    def make_size_error(self) -> TooLarge:
        return TooLarge(
            f"The file is larger than the {self.file:,} bytes allowed. "
            "The server's --file-size can raise this."
        )


class Upload:
    """A file that is being received."""

    def __init__(self, store: Store, owner: str, limits: FileLimits) -> None:
        self.id = f"file-{uuid.uuid4().hex}"
        self._store = store
        self._owner = owner
        self._limits = limits
        self._buffer = bytearray()
        self._written = 0  # chunks
        self._last_write: asyncio.Task[object] | None = None
        self._size = 0

    async def write(self, data: bytes) -> None:
        """Add data, or raise an error if a limit is exceeded."""
        self._size += len(data)
        if self._size > self._limits.file:
            raise self._limits.make_size_error()
        self._buffer += data
        while len(self._buffer) >= CHUNK_BYTES:
            chunk = bytes(self._buffer[:CHUNK_BYTES])
            del self._buffer[:CHUNK_BYTES]
            await self._write(partial(self._append, data=chunk))
            self._written += 1

    async def finish(self, filename: str, purpose: str, seconds: float | None) -> StoredFile:
        """Write the rest, and make the file visible. It expires after so many seconds."""
        lifetime = self._limits.ttl if seconds is None else min(seconds, self._limits.ttl)
        created = int(time.time())
        rest = bytes(self._buffer)

        def complete(tx: Transaction) -> StoredFile | None:
            self._append(tx, rest)
            return tx.files.finish(
                self._owner,
                self.id,
                filename=filename,
                purpose=purpose,
                created=created,
                expires=created + lifetime,
            )

        row = await self._write(complete)
        if row is None:
            raise StoreUnavailable("The file was deleted while it was uploaded.")
        return row

    async def abort(self) -> None:
        """Delete what was written, and what is being written."""
        if self._last_write is not None:
            await asyncio.gather(self._last_write, return_exceptions=True)
            await delete_file(self._store, self._owner, self.id)

    async def _write(self, operation: Callable[[Transaction], T]) -> T:
        """Run a transaction; it goes on if nobody waits for it any more, and `abort` does then."""
        self._last_write = write = asyncio.create_task(self._store.write(operation))
        return await asyncio.shield(write)

    def _append(self, tx: Transaction, data: bytes) -> None:
        self._check_quota(tx, len(data))
        if self._written == 0:
            now = time.time()
            tx.files.add(
                StoredFile(
                    id=self.id,
                    owner=self._owner,
                    purpose="",
                    filename="",
                    created=int(now),
                    expires=now + UPLOAD_SECONDS,
                )
            )
        if not tx.files.append(self._owner, self.id, [(self._written, data)]):
            raise StoreUnavailable("The file was deleted while it was uploaded.")

    def _check_quota(self, tx: Transaction, size: int) -> None:
        quota = self._limits.get_quota(self._owner)
        used = tx.files.sum_bytes(self._owner)
        if self._size > quota:
            raise QuotaExceeded(f"The file is larger than the {quota:,} bytes that you may store.")
        if used + size > quota:
            others = used - self._written * CHUNK_BYTES
            raise QuotaExceeded(
                f"Your files take {others:,} of {quota:,} bytes. Delete some of them first."
            )
        if tx.files.sum_bytes() + size > self._limits.total:
            raise StoreUnavailable("The server has no space left for files.", retry_after=60)


async def delete_file(store: Store, owner: str, file: str) -> bool:
    """Delete a file piece by piece; False if there is none. It is invisible from the start."""
    if not await store.delete(lambda tx: tx.files.delete(owner, file)):
        return False
    while not await store.delete(lambda tx: tx.files.delete_piece(file)):
        pass
    return True
