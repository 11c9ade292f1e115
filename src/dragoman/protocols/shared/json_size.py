"""How much a JSON body contains, found out before it is decoded.

Decoding holds the interpreter from beginning to end and needs many times the memory of the body if
that consists of small values: a list of a million empty objects, for example. So the values of
large bodies are counted first. That is quick, needs little memory and is done chunk by chunk, so
that other threads get to run: escaped characters are dropped from a chunk, what remains is split at
its quotes, and every other part is outside of strings.

Text beyond ASCII counts separately, since it takes up to four times its size when decoded. So do
escaped characters, each of which takes as long to decode as several others.
"""

from __future__ import annotations

import codecs
import re

from msgspec import Struct

CHUNK = 1 << 18  # bytes
MAX_LEVELS = 20  # deeper levels may be counted as members of the body
_STRUCTURE = b"[]{},"
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in _STRUCTURE)
_INNERMOST = re.compile(rb"[\[{],*[\]}]")


class JsonSize(Struct):
    """What a body contains."""

    containers: int = 0  # lists and objects
    strings: int = 0  # names of members, too
    values: int = 0  # of any kind, without names of members
    members: int = 0  # of the body itself, which is an object
    wide_bytes: int = 0  # of strings with characters beyond ASCII, or with escapes like \\u20ac
    escapes: int = 0  # characters that are escaped


class JsonSizeLimits(Struct, frozen=True):
    """The largest size that is decoded."""

    containers: int
    strings: int
    values: int
    members: int
    wide_bytes: int
    escapes: int

    def find_excess(self, size: JsonSize) -> str | None:
        """Return a phrase about the first limit that is exceeded."""
        for field, noun in (
            ("containers", "lists and objects"),
            ("strings", "strings"),
            ("values", "values"),
            ("members", "fields"),
            ("wide_bytes", "bytes of text beyond ASCII"),
            ("escapes", "escaped characters"),
        ):
            limit = getattr(self, field)
            if getattr(size, field) > limit:
                return f"more than {limit:,} {noun}"
        return None


def find_excess(body: bytes, limits: JsonSizeLimits) -> str | None:
    """Return what a body has too much of; stops counting there.

    Raises `UnicodeDecodeError` for a body that is not UTF-8.
    """
    counter = _SizeCounter()
    start = 0
    while start < len(body):
        end = min(start + CHUNK, len(body))
        chunk = body[start:end]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:  # do not cut an escape in two
            end += 1
            chunk = body[start:end]
        counter.add(chunk)
        excess = limits.find_excess(counter.size)
        if excess is not None:
            return excess
        start = end
    counter.finish()
    return limits.find_excess(counter.size)


class _SizeCounter:
    """Counts chunk by chunk."""

    def __init__(self) -> None:
        self.size = JsonSize()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._structure: list[bytes] = []  # the brackets and commas outside of strings
        self._in_string = False
        self._open_bytes = 0  # of a string that the last chunk has not ended
        self._is_wide = False  # this string

    def add(self, chunk: bytes) -> None:
        is_wide = not chunk.isascii()
        if is_wide:
            self._decoder.decode(chunk)
        else:
            self._decoder.decode(b"", True)  # the last chunk must not end within a character
            self._decoder.reset()
        if b"\\" in chunk:
            is_wide = is_wide or b"\\u" in chunk
            self.size.escapes += chunk.count(b"\\") - chunk.count(b"\\\\")
            chunk = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = chunk.split(b'"')
        first_outside = int(self._in_string)
        self._count_structure(b"".join(parts[first_outside::2]))
        self._count_strings(parts, 1 - first_outside, is_wide)

    def finish(self) -> None:
        self._decoder.decode(b"", True)
        structure = b"".join(self._structure)[1:-1]  # without the brackets of the body
        for _ in range(MAX_LEVELS):
            structure, removed = _INNERMOST.subn(b"", structure)
            if not removed:
                break
        self.size.members = structure.count(b",") + 1

    def _count_structure(self, text: bytes) -> None:
        text = text.translate(None, _OTHER_BYTES)
        self._structure.append(text)
        containers = text.count(b"[") + text.count(b"{")
        self.size.containers += containers
        self.size.values += containers + text.count(b",")

    def _count_strings(self, parts: list[bytes], first: int, is_wide: bool) -> None:
        """Count the strings of a chunk, of which the first and the last may be incomplete."""
        ends_inside = self._in_string ^ (len(parts) % 2 == 0)
        for index in range(first, len(parts), 2):
            part = parts[index]
            self._open_bytes += len(part)
            self._is_wide |= is_wide and (not part.isascii() or b"\\u" in part)
            if index < len(parts) - 1 or not ends_inside:
                self._end_string()
        self._in_string = ends_inside
        if ends_inside and self._is_wide:
            self.size.wide_bytes += self._open_bytes
            self._open_bytes = 0

    def _end_string(self) -> None:
        self.size.strings += 1
        self.size.wide_bytes += self._open_bytes if self._is_wide else 0
        self._open_bytes, self._is_wide = 0, False
