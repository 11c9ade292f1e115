"""Server-sent events as the data of each frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from dragoman.engines.remote.failures import InvalidFrame

T = TypeVar("T")

MAX_FRAME = 32 << 20  # a cumulative stream repeats the whole answer in each frame
DONE = b"[DONE]"
DATA = b"data: "
END = b"\n\n"


class FrameSplitter:
    """Splits a body into frames. Comments, names of events and ids are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the frames that are complete with this part of the body."""
        if self._rest:
            data = self._rest + data
        elif data.find(END) == len(data) - 2 and data.startswith(DATA) and data.count(b"\n") == 2:
            return [data[6:-2]]  # the usual case: one frame
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(END)
        if len(self._rest) > MAX_FRAME:
            raise InvalidFrame("a frame is too long")
        return [frame for event in events if (frame := read_data(event)) is not None]


def read_data(event: bytes) -> bytes | None:
    """Return the data of an event; None if it has none."""
    if event.startswith(DATA) and b"\n" not in event:
        return event[6:]
    lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def decode_frame(decode: Callable[[bytes], T], frame: bytes) -> T:
    """Return the content of a frame, or raise `InvalidFrame`."""
    try:
        return decode(frame)
    except msgspec.DecodeError as error:
        raise InvalidFrame(f"a frame cannot be read: {error}") from None
