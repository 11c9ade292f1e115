"""The service for files: uploads, and gets, lists, reads and deletes files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from dragoman.errors import NotFound, shorten_id
from dragoman.files.upload import FileLimits, Upload, delete_file
from dragoman.store.batches.rows import StoredFile
from dragoman.store.rows import Page

if TYPE_CHECKING:
    from dragoman.store.store import Store

READ_BYTES = 256 << 10  # that are read from the store at once


class FileService:
    """The files of all owners."""

    def __init__(self, get_store: Callable[[], Awaitable[Store]], limits: FileLimits) -> None:
        self._get_store = get_store
        self.limits = limits

    @asynccontextmanager
    async def upload(self, owner: str) -> AsyncIterator[Upload]:
        """Receive a file. If the block raises an error, nothing stays in the store."""
        upload = Upload(await self._get_store(), owner, self.limits)
        try:
            yield upload
        except BaseException:
            await upload.abort()
            raise

    async def get(self, owner: str, file: str) -> StoredFile:
        """Return a file, or raise `NotFound`."""
        store = await self._get_store()
        row = await store.read(lambda tx: tx.files.get(owner, file))
        if row is None:
            raise NotFound(f"There is no file `{shorten_id(file)}`.", param="file_id")
        return row

    async def list_page(self, owner: str, page: Page, purpose: str | None) -> list[StoredFile]:
        store = await self._get_store()
        return await store.read(lambda tx: tx.files.list_page(owner, page, purpose))

    async def delete(self, owner: str, file: str) -> None:
        """Delete a file, or raise `NotFound`; `FileInUse` if a batch still reads it."""
        store = await self._get_store()
        if not await delete_file(store, owner, file):
            raise NotFound(f"There is no file `{shorten_id(file)}`.", param="file_id")

    async def read_chunks(self, file: str) -> AsyncIterator[bytes]:
        """Yield the content of a file piece by piece; the caller knows that it may be read."""
        store = await self._get_store()
        chunks = await _read_chunks(store, file, -1)
        while chunks:
            yield b"".join(data for _, data in chunks)
            chunks = await _read_chunks(store, file, chunks[-1][0])

    async def find_file(
        self, owner: str, file: str, max_bytes: int | None = None
    ) -> tuple[bytes, str] | None:
        """Return the content and the name of an owner's file, for content parts that refer to it.

        None if the owner has no such file; whether another owner has one makes no difference. Of a
        file larger than `max_bytes`, a little more than that is returned.
        """
        store = await self._get_store()
        row = await store.read(lambda tx: tx.files.get(owner, file))
        if row is None:
            return None
        content = bytearray()
        async for chunk in self.read_chunks(row.id):
            content += chunk
            if max_bytes is not None and len(content) > max_bytes:
                break
        return bytes(content), row.filename


async def _read_chunks(store: Store, file: str, after: int) -> list[tuple[int, bytes]]:
    return await store.read(lambda tx: tx.files.read_chunks(file, after, READ_BYTES))
