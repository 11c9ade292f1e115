"""Server-sent events as the data of each frame."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from dragoman.engines.remote.failures import DECODE_ERRORS, InvalidFrame

T = TypeVar("T")

MAX_FRAME = 32 << 20  # a cumulative stream repeats the whole answer in each frame
DONE = b"[DONE]"
DATA = b"data: "
END = b"\n\n"
OBJECT_END = b"}" + END
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# an escape in a JSON text: a pair of surrogates, one surrogate without the other, or any other
ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
UNKNOWN_CHARACTER = rb"\ufffd"


class FrameSplitter:
    """Splits a body into frames. Comments, names of events and ids are dropped.

    Lines end with CR, LF or both, and a byte order mark may come first, as the standard says. At
    the end of a body, an empty line (`END`) ends a frame that has none.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # of the body, with LF at the ends of lines
        self._ends_with_cr = False  # an LF that follows belongs to it
        self._is_first = True  # nothing but a part of the byte order mark has arrived
        self._is_between_frames = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the frames that are complete with this part of the body."""
        if (
            self._is_between_frames
            and data.startswith(DATA)
            and data.endswith(OBJECT_END)
            and data.find(b"\n") == len(data) - 2
        ):
            return [data[6:-2]]  # the usual case
        frames = self._split(data)
        self._is_between_frames = not (self._rest or self._ends_with_cr or self._is_first)
        return frames

    def _split(self, data: bytes) -> list[bytes]:
        """Split all that has arrived; of a long frame only the new part is looked at."""
        rest = self._rest
        start = 0 if self._is_first else max(0, len(rest) - 1)
        rest += self._normalize(data)
        if self._is_first and not self._drop_mark():
            return []
        if rest.find(END, start) < 0:
            if len(rest) > MAX_FRAME:
                raise InvalidFrame("a frame is too long")
            return []
        *events, remaining = bytes(rest).split(END)
        self._rest = bytearray(remaining)
        return [frame for event in events if (frame := read_data(event))]

    def _normalize(self, data: bytes) -> bytes:
        """Return data whose lines end with LF, wherever a CRLF was cut."""
        if self._ends_with_cr:
            data = data.removeprefix(b"\n")
        self._ends_with_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _drop_mark(self) -> bool:
        """Drop the byte order mark; return False while it may still be incomplete."""
        rest = self._rest
        if len(rest) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(rest):
            return False
        self._is_first = False
        if rest.startswith(BYTE_ORDER_MARK):
            del rest[: len(BYTE_ORDER_MARK)]
        return True


def read_data(event: bytes) -> bytes:
    """Return the data of an event; one without any is no event.

    An older llama-server writes an error into a field of that name.
    """
    if event.startswith(DATA) and b"\n" not in event:
        return event[6:]
    lines = event.split(b"\n")
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    if not data and (error := next((x[6:] for x in lines if x.startswith(b"error:")), b"")):
        return b'{"error":%b}' % error
    return b"\n".join(data)


def decode_frame(decode: Callable[[bytes], T], frame: bytes) -> T:
    """Return the content of a frame, or raise `InvalidFrame`."""
    try:
        return decode(frame)
    except DECODE_ERRORS as error:
        repaired = replace_half_characters(frame)
        if repaired != frame:
            return decode_frame(decode, repaired)
        raise InvalidFrame(f"a frame cannot be read: {error}") from None


def replace_half_characters(data: bytes) -> bytes:
    """Replace surrogates without their other half, which JSON allows and no text can hold.

    Servers whose strings are UTF-16 send one where they cut a text inside a character.
    """
    if b"\\u" not in data:
        return data
    return ESCAPE.sub(lambda match: UNKNOWN_CHARACTER if match[1] else match[0], data)
