"""Events of a response as frames of a stream.

A frame is one event for SSE; its JSON is what a WebSocket carries. Events are numbered from 0
without a gap. The frame of a piece of text is a head that is made once per item, the number and
the escaped text.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.protocols.shared.openai import encode, pad_frame


class EventEncoder:
    """Numbers the events of one response."""

    def __init__(self, pad: bool = False) -> None:
        self.count = 0
        self._pad = pad

    def encode_event(self, kind: str, **fields: Any) -> bytes:
        """An event of any kind."""
        number, self.count = self.count, self.count + 1
        body = encode({"type": kind, "sequence_number": number, **fields})
        frame = b"event: %b\ndata: %b\n\n" % (kind.encode(), body)
        return pad_frame(frame) if self._pad and kind.endswith(".delta") else frame

    def encode_head(self, kind: str, **fields: Any) -> bytes:
        """What comes before the number in an event that only adds a text."""
        body = encode({"type": kind, **fields})[:-1]
        return b'event: %b\ndata: %b,"sequence_number":' % (kind.encode(), body)

    def encode_text_delta(self, head: bytes, text: str) -> bytes:
        number = self.count
        self.count = number + 1
        frame = b'%b%d,"delta":%b}\n\n' % (head, number, encode(text))
        return pad_frame(frame) if self._pad else frame


class _Kind(Struct):
    type: str


def make_frame(text: bytes) -> bytes:
    """The frame of an event's JSON."""
    kind = msgspec.json.decode(text, type=_Kind).type
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), text)


def get_frame_json(frame: bytes, stream: str | None = None) -> bytes:
    """The JSON of a frame, as an event of one of a socket's streams if it has several."""
    return add_stream_id(frame.partition(b"\ndata: ")[2][:-2], stream)


def add_stream_id(text: bytes, stream: str | None) -> bytes:
    return text if stream is None else b'%b,"stream_id":%b}' % (text[:-1], encode(stream))
