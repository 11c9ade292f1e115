"""Splits a file into lines as its content arrives.

A line ends with a line feed; lines without content are skipped, but counted. No more than the
chunk that arrives and one unfinished line are in memory, and the time is linear in both.
"""

from __future__ import annotations

import re

from msgspec import Struct

BOM = b"\xef\xbb\xbf"  # some editors put it at the start of a file
_CONTENT = re.compile(rb"[^\s][^\n]*")


class FileLine(Struct, frozen=True):
    """A line with content. It has no data if it is too long."""

    number: int  # from 1
    data: bytes | None


class LineSplitter:
    """Splits one file."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes  # of one line, with its end
        self._number = 1  # of the line that has not ended
        self._parts: list[bytes] = []  # of that line
        self._size = 0

    def feed(self, chunk: bytes) -> list[FileLine]:
        """Return the lines that end in this chunk."""
        lines: list[FileLine] = []
        start = chunk.find(b"\n") + 1
        if start == 0:
            self._hold(chunk)
            return lines
        self._hold(chunk[:start])
        lines += self._take_line()
        end = chunk.rfind(b"\n") + 1
        counted = start
        for match in _CONTENT.finditer(chunk, start, end):
            self._number += chunk.count(b"\n", counted, match.start())
            counted = match.start()
            line_start = chunk.rfind(b"\n", 0, match.start()) + 1
            is_long = match.end() + 1 - line_start > self._max_bytes
            lines.append(FileLine(self._number, None if is_long else match[0]))
        self._number += chunk.count(b"\n", counted, end)
        self._hold(chunk[end:])
        return lines

    def finish(self) -> list[FileLine]:
        """Return the last line, if the file does not end with a line feed."""
        return self._take_line()

    def _hold(self, data: bytes) -> None:
        """Keep a part of the unfinished line, unless the line is too long already."""
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._parts.append(data)

    def _take_line(self) -> list[FileLine]:
        """Return the unfinished line, which ends, if it has content."""
        data = b"".join(self._parts).strip()
        if self._number == 1:
            data = data.removeprefix(BOM)
        is_long = self._size > self._max_bytes
        line = FileLine(self._number, None if is_long else data)
        self._number += 1
        self._parts, self._size = [], 0
        return [line] if is_long or data else []
