"""Files as Anthropic's API describes them; the same files as those of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from mimetypes import MimeTypes

from msgspec import Struct

from dragoman.errors import InvalidValue, UnknownParameter, Unsupported
from dragoman.protocols.files import FileInfo, UploadFields
from dragoman.protocols.shared.openai import encode

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000  # files of a page
MIN_SECONDS, MAX_SECONDS = 3600, 90 * 24 * 3600  # of `expires_in_seconds`
PURPOSE = "user_data"  # uploads of this API have no purpose
UNKNOWN_TYPE = "application/octet-stream"
EXPIRY = "expires_in_seconds"
# query fields that would choose other files, and are not supported
UNSUPPORTED = ("before_id", "ids", "ids[]", "scope_id")
_types = MimeTypes()  # without the tables of this machine


class MessagesFile(Struct, kw_only=True):
    """A file."""

    id: str
    type: str = "file"
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str
    downloadable: bool = True


class MessagesFileList(Struct, kw_only=True):
    """A page of files; older clients continue after `last_id`, newer ones with `next_page`."""

    data: list[MessagesFile]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_page: str | None


class DeletedFile(Struct):
    id: str
    type: str = "file_deleted"


def decode_file_upload(fields: Mapping[str, str], strict: bool = False) -> UploadFields:
    """Decode all fields of a form but its file."""
    unknown = [name[:64] for name in fields if name != EXPIRY]
    if strict and unknown:
        raise UnknownParameter(f"Unrecognized field `{unknown[0]}`.", param=unknown[0])
    text = fields.get(EXPIRY)
    seconds = None
    if text is not None:
        seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            raise InvalidValue(
                f"`{EXPIRY}` must be between {MIN_SECONDS} and {MAX_SECONDS}.", param=EXPIRY
            )
    warnings = [f"`{name}` is unknown and has no effect." for name in unknown]
    return UploadFields(PURPOSE, seconds, warnings, EXPIRY)


def get_cursor(query: Mapping[str, str]) -> str | None:
    """Return the file after which a page begins."""
    for name in UNSUPPORTED:
        if name in query:
            raise Unsupported(f"`{name}` is not supported: list files by `page`.", param=name)
    return query.get("page") or query.get("after_id")


def encode_file(info: FileInfo) -> bytes:
    return encode(_make_file(info))


def encode_file_page(page: Sequence[FileInfo], has_more: bool) -> bytes:
    files = [*map(_make_file, page)]
    first, last = (files[0].id, files[-1].id) if files else (None, None)
    return encode(
        MessagesFileList(
            data=files,
            first_id=first,
            last_id=last,
            has_more=has_more,
            next_page=last if has_more else None,
        )
    )


def encode_deletion(file: str) -> bytes:
    return encode(DeletedFile(file))


def _make_file(info: FileInfo) -> MessagesFile:
    return MessagesFile(
        id=info.id,
        filename=info.filename,
        mime_type=_types.guess_type(info.filename)[0] or UNKNOWN_TYPE,
        size_bytes=info.bytes,
        created_at=_format_time(info.created),
        expires_at=_format_time(info.expires),
    )


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
