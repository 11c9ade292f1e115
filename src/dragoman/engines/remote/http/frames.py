"""Server-sent events as the data of each frame."""

from __future__ import annotations

from dragoman.engines.remote.failures import InvalidFrame

MAX_FRAME = 64 << 20  # a cumulative stream repeats the whole answer in each frame
DONE = b"[DONE]"


class FrameSplitter:
    """Splits a body into frames. Comments, names of events and ids are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the frames that are complete with this part of the body."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = self._unify_line_ends(data)
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_FRAME:
            raise InvalidFrame("a frame is too long")
        return [frame for event in events if (frame := read_data(event)) is not None]

    @staticmethod
    def _unify_line_ends(data: bytes) -> bytes:
        """Return the data with `\\n` for `\\r\\n`; half of one at the end waits for the rest."""
        return data.replace(b"\r\n", b"\n")


def read_data(event: bytes) -> bytes | None:
    """Return the data of an event; None if it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]  # the usual case
    lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
