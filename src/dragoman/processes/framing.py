"""Frames: how messages between two processes are delimited.

A frame is four bytes of length, big-endian, and a body. The body's encoding is the caller's choice;
nothing is pickled. A frame whose length exceeds the limit is an error before any of its body is
read, so that a broken peer cannot fill our memory.
"""

from __future__ import annotations

from typing import Protocol

LENGTH_BYTES = 4


class ByteReader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class FramingError(Exception):
    """The peer sent bytes that are not a valid frame or message."""


def encode_frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameDecoder:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Return the bodies that are complete now; raise `FramingError` if one is too long."""
        buffer = self._buffer
        buffer += data
        bodies, start = [], 0
        while len(buffer) - start >= LENGTH_BYTES:
            size = int.from_bytes(buffer[start : start + LENGTH_BYTES], "big")
            if size > self._limit:
                raise FramingError(f"a frame of {size} bytes exceeds the limit of {self._limit}")
            if len(buffer) - start - LENGTH_BYTES < size:
                break
            start += LENGTH_BYTES
            bodies.append(bytes(buffer[start : start + size]))
            start += size
        if start:
            del buffer[:start]
        return bodies


def read_frame(stream: ByteReader) -> bytes | None:
    """Block until the next frame has arrived; None when the stream ends, even inside a frame."""
    header = stream.read(LENGTH_BYTES)
    if len(header) < LENGTH_BYTES:
        return None
    size = int.from_bytes(header, "big")
    body = stream.read(size)
    return body if len(body) == size else None
