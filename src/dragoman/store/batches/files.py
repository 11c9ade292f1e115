"""Files of clients, within one transaction.

The content of a file is a sequence of chunks of any size. A file that is not complete is invisible
to its owner; so is one that has expired, until a sweep deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    func,
    insert,
    not_,
    select,
    update,
)

from dragoman.errors import FileInUse
from dragoman.store.batches.rows import StoredFile
from dragoman.store.limits.write_meter import WriteMeter
from dragoman.store.paging import list_page
from dragoman.store.rows import ROW, Page
from dragoman.store.tables import batches, chunks, files, get_current_time

NumberedChunks: TypeAlias = Sequence[tuple[int, bytes]]  # not empty

MAX_CHUNKS = 512  # chunks that are read or deleted at a time
PIECE_BYTES = 2 << 20  # of a file, that are deleted at once
HIDDEN = {"complete": False, "batch": None, "expires": 0.0}  # columns of a file that is deleted


class FileRepository:
    """Reads and writes files."""

    def __init__(self, connection: Connection, meter: WriteMeter) -> None:
        self._connection = connection
        self._meter = meter

    def add(self, row: StoredFile) -> None:
        """Add a file without content, which is not complete."""
        self._meter.check_ids([row.id, row.owner, row.filename])
        self._meter.add(row.owner, [len(row.filename)])
        self._connection.execute(
            insert(files).values(
                id=row.id,
                owner=row.owner,
                purpose=row.purpose,
                filename=row.filename,
                created=row.created,
                expires=row.expires,
                bytes=0,
                size=ROW,
                complete=False,
                batch=row.batch,
            )
        )

    def append(self, owner: str, file: str, content: NumberedChunks) -> bool:
        """Add chunks to a file that is not complete; False if there is none."""
        self._meter.add(owner, (len(data) for _, data in content))
        length = sum(len(data) for _, data in content)
        grown = {
            "bytes": files.c.bytes + length,
            "size": files.c.size + ROW * len(content) + length,
        }
        is_open = and_(_is_owned(owner, file), files.c.complete.is_(False))
        if not self._connection.execute(update(files).where(is_open).values(grown)).rowcount:
            return False
        rows = [
            {"file": file, "number": number, "length": len(data), "data": data}
            for number, data in content
        ]
        self._connection.execute(insert(chunks), rows)
        return True

    def sum_bytes(self, owner: str | None = None) -> int:
        """Return the bytes of all files of an owner, or of all owners; unfinished ones count."""
        query = select(func.coalesce(func.sum(files.c.bytes), 0))
        if owner is not None:
            query = query.where(files.c.owner == owner)
        return int(self._connection.execute(query).scalar_one())

    def finish(self, owner: str, file: str, **values: object) -> StoredFile | None:
        """Make a file complete, and set other columns of it."""
        statement = update(files).where(_is_owned(owner, file)).values(complete=True, **values)
        self._connection.execute(statement)
        return self.get(owner, file)

    def get(self, owner: str, file: str) -> StoredFile | None:
        query = select(files).where(self._is_visible(owner), files.c.id == file)
        row = self._connection.execute(query).first()
        return None if row is None else _to_stored(row)

    def list_page(self, owner: str, page: Page, purpose: str | None = None) -> list[StoredFile]:
        visible = self._is_visible(owner)
        if purpose is not None:
            visible = and_(visible, files.c.purpose == purpose)
        rows = list_page(self._connection, select(files), files, visible, page)
        return [_to_stored(row) for row in rows]

    def delete(self, owner: str, file: str) -> bool:
        """Make a file invisible and begin to delete it; `FileInUse` if a batch still reads it.

        `delete_piece` deletes the rest of a large file; a sweep would do so, too.
        """
        is_owned = _is_owned(owner, file)
        if self._connection.execute(select(is_read_by_batch()).where(is_owned)).scalar():
            raise FileInUse("A batch that has not ended reads this file. Cancel the batch first.")
        is_writing = and_(files.c.batch.is_not(None), files.c.complete.is_(False))
        hidden = update(files).where(is_owned, not_(is_writing)).values(HIDDEN)
        if not self._connection.execute(hidden).rowcount:
            return False
        self.delete_piece(file)
        return True

    def delete_piece(self, file: str) -> bool:
        """Delete some content of an invisible file, and the file with the last; True if it is gone.

        SQLite writes what it deletes, so a large file would not fit into what is left of a disk,
        and other transactions would wait for it.
        """
        query = select(chunks.c.number, chunks.c.length).where(chunks.c.file == file)
        numbers: list[int] = []
        size = 0
        for number, length in self._connection.execute(
            query.order_by(chunks.c.number).limit(MAX_CHUNKS)
        ):
            if size + length > PIECE_BYTES and numbers:
                break
            numbers.append(number)
            size += length
        piece = and_(chunks.c.file == file, chunks.c.number.in_(numbers))
        self._connection.execute(delete(chunks).where(piece))
        rest = select(chunks.c.number).where(chunks.c.file == file).limit(1)
        if self._connection.execute(rest).first() is None:
            self._connection.execute(delete(files).where(files.c.id == file))
            return True
        shrunk = {
            "bytes": files.c.bytes - size,
            "size": files.c.size - size - ROW * len(numbers),
            **HIDDEN,
        }
        self._connection.execute(update(files).where(files.c.id == file).values(shrunk))
        return False

    def read_chunks(self, file: str, after: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """Return chunks after a number, with their numbers: at least one, unless it was the last.

        The caller has checked that the reader owns the file.
        """
        following = and_(chunks.c.file == file, chunks.c.number > after)
        query = select(chunks.c.number, chunks.c.length).where(following)
        last, size = after, 0
        for number, length in self._connection.execute(
            query.order_by(chunks.c.number).limit(MAX_CHUNKS)
        ):
            if size and size + length > max_bytes:
                break
            last, size = number, size + length
        data = select(chunks.c.number, chunks.c.data).where(following, chunks.c.number <= last)
        rows = self._connection.execute(data.order_by(chunks.c.number))
        return [(row.number, bytes(row.data)) for row in rows]

    def _is_visible(self, owner: str) -> ColumnElement[bool]:
        is_current = files.c.expires > get_current_time(self._connection)
        return and_(files.c.owner == owner, files.c.complete.is_(True), is_current)


def is_read_by_batch() -> ColumnElement[bool]:
    """Whether a batch that has not ended reads a file."""
    query = select(batches.c.id).where(
        batches.c.input_file == files.c.id, batches.c.ended.is_(None)
    )
    return query.exists()


def _is_owned(owner: str, file: str) -> ColumnElement[bool]:
    return and_(files.c.id == file, files.c.owner == owner)


def _to_stored(row: Row[Any]) -> StoredFile:
    return StoredFile(**{name: getattr(row, name) for name in StoredFile.__struct_fields__})
