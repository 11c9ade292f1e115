"""Server-sent events as the data of each frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dragoman.engines.remote.failures import DECODE_ERRORS, InvalidFrame

T = TypeVar("T")

MAX_FRAME = 32 << 20  # a cumulative stream repeats the whole answer in each frame
DONE = b"[DONE]"
DATA = b"data: "
END = b"\n\n"


class FrameSplitter:
    """Splits a body into frames. Comments, names of events and ids are dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the frames that are complete with this part of the body."""
        if data.endswith(END) and data.find(b"\n") == len(data) - 2 and not self._rest:
            frame = data[6:-2]
            if frame and data.startswith(DATA):
                return [frame]  # the usual case
        return self._split(data)

    def _split(self, data: bytes) -> list[bytes]:
        """Split all that has arrived; of a long frame only the new part is looked at."""
        rest = self._rest
        start = max(0, len(rest) - 3)
        rest += data
        if rest.find(b"\n\n", start) < 0 and rest.find(b"\n\r\n", start) < 0:
            if len(rest) > MAX_FRAME:
                raise InvalidFrame("a frame is too long")
            return []
        whole = bytes(rest).replace(b"\r\n", b"\n")
        *events, remaining = whole.split(END)
        self._rest = bytearray(remaining)
        return [frame for event in events if (frame := read_data(event))]


def read_data(event: bytes) -> bytes:
    """Return the data of an event; one without any is no event."""
    if event.startswith(DATA) and b"\n" not in event:
        return event[6:]
    lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def decode_frame(decode: Callable[[bytes], T], frame: bytes) -> T:
    """Return the content of a frame, or raise `InvalidFrame`."""
    try:
        return decode(frame)
    except DECODE_ERRORS as error:
        raise InvalidFrame(f"a frame cannot be read: {error}") from None
