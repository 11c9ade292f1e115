"""Parses `multipart/form-data` as it arrives, in bounded memory.

`MultipartParser.feed` takes any piece of the body and returns what it completes: the start of a
part, then its data in pieces. At most the headers of a part and the length of a delimiter are held
back, so that a body of any size, in chunks of any size, costs little memory and linear time.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TypeAlias
from urllib.parse import unquote

from msgspec import Struct

from dragoman.errors import InvalidValue

MAX_HEADERS = 8192  # bytes of the headers of one part
MAX_PARTS = 32
MAX_BOUNDARY = 70  # characters, by RFC 2046
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE)
_BOUNDARY_TEXT = re.compile(r"[0-9A-Za-z'()+_,./:=? -]*[0-9A-Za-z'()+_,./:=?-]")
_DISPOSITION = re.compile(r"content-disposition\s*:\s*form-data\s*(;.*)", re.IGNORECASE)
_FIELD = re.compile(r';\s*([\w*]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]*))')


class PartStart(Struct, frozen=True):
    """A part begins."""

    name: str
    filename: str | None = None


class PartData(Struct, frozen=True):
    """A piece of the part that began last."""

    data: bytes


Event: TypeAlias = PartStart | PartData


class _State(Enum):
    PREAMBLE = "preamble"
    DELIMITER = "delimiter"
    HEADERS = "headers"
    BODY = "body"
    END = "end"


def read_boundary(content_type: str) -> bytes:
    """Return the boundary that a `Content-Type` header names."""
    match = _BOUNDARY.search(content_type)
    text = "" if match is None else match[1] or match[2] or ""
    if len(text) > MAX_BOUNDARY or not _BOUNDARY_TEXT.fullmatch(text):
        raise InvalidValue("`Content-Type: multipart/form-data` needs a valid `boundary`.")
    return text.encode()


class MultipartParser:
    """Parses one body."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = b"\r\n"  # so that the first delimiter looks like all others
        self._state = _State.PREAMBLE
        self._parts = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return what this piece of the body completes."""
        events: list[Event] = []
        self._buffer += data
        while self._advance(events):
            pass
        return events

    def finish(self) -> None:
        """Check that the body was complete."""
        if self._state is not _State.END:
            raise InvalidValue("The form ends before its last boundary.")

    def _advance(self, events: list[Event]) -> bool:
        """Parse as much as one state can; False if that needs more data."""
        match self._state:
            case _State.PREAMBLE | _State.BODY:
                return self._read_to_delimiter(events)
            case _State.DELIMITER:
                return self._read_delimiter_end()
            case _State.HEADERS:
                return self._read_headers(events)
            case _State.END:
                self._buffer = b""  # what follows the last boundary has no meaning
                return False

    def _read_to_delimiter(self, events: list[Event]) -> bool:
        """Consume the data before the next delimiter; False if that has not arrived yet."""
        index = self._buffer.find(self._delimiter)
        end = index if index >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        if end and self._state is _State.BODY:
            events.append(PartData(self._buffer[:end]))
        elif end > MAX_HEADERS:
            raise InvalidValue("The form does not begin with its boundary.")
        if index < 0:
            self._buffer = self._buffer[end:]
            return False
        self._buffer = self._buffer[index + len(self._delimiter) :]
        self._state = _State.DELIMITER
        return True

    def _read_delimiter_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        end, self._buffer = self._buffer[:2], self._buffer[2:]
        if end == b"--":
            self._state = _State.END
        elif end == b"\r\n":
            self._state = _State.HEADERS
        else:
            raise InvalidValue("A boundary of the form is not followed by the end of a line.")
        return True

    def _read_headers(self, events: list[Event]) -> bool:
        index = self._buffer.find(b"\r\n\r\n")
        if index > MAX_HEADERS or (index < 0 and len(self._buffer) > MAX_HEADERS):
            raise InvalidValue(f"The headers of a part are longer than {MAX_HEADERS:,} bytes.")
        if index < 0:
            return False
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidValue(f"The form has more than {MAX_PARTS} parts.")
        events.append(_parse_headers(self._buffer[:index]))
        self._buffer = self._buffer[index + 4 :]
        self._state = _State.BODY
        return True


def _parse_headers(headers: bytes) -> PartStart:
    lines = headers.decode("utf-8", "replace").split("\r\n")
    found = [match for line in lines if (match := _DISPOSITION.fullmatch(line))]
    fields: dict[str, str] = {}
    for match in _FIELD.finditer(found[0][1]) if len(found) == 1 else ():
        value = match[3] if match[2] is None else re.sub(r"\\(.)", r"\1", match[2])
        fields.setdefault(match[1].lower(), value)
    if "name" not in fields:
        raise InvalidValue("A part of the form has no `Content-Disposition` with a name.")
    extended = fields.get("filename*", "")
    filename = fields.get("filename")
    if "''" in extended:
        filename = unquote(extended.partition("''")[2], errors="replace")
    elif filename is not None:  # browsers and clients escape quotes and line ends like this
        filename = re.sub("%(22|0D|0A)", lambda match: chr(int(match[1], 16)), filename)
    return PartStart(fields["name"], filename)
