"""Encode files and pages of files."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, structs

from dragoman.protocols.shared.openai import encode, encode_page


class FileInfo(Struct, frozen=True):
    """What is known about a file."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created: int
    expires: float


class FileObject(Struct):
    """A file."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None


def make_file_object(info: FileInfo) -> FileObject:
    return FileObject(
        id=info.id,
        bytes=info.bytes,
        created_at=info.created,
        expires_at=int(info.expires),
        filename=info.filename,
        purpose=info.purpose,
    )


def encode_file(info: FileInfo) -> bytes:
    return encode(make_file_object(info))


def encode_file_list(page: Sequence[FileInfo], has_more: bool) -> bytes:
    return encode_page([structs.asdict(make_file_object(info)) for info in page], has_more)


def encode_deletion(file: str) -> bytes:
    return encode({"id": file, "object": "file", "deleted": True})
