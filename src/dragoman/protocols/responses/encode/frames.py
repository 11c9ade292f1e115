"""Encode events of a response as frames of a stream.

A frame is one event for SSE; a WebSocket carries its JSON. Events are numbered from 0 without gaps.
The frame of a text delta is a head that is built once per item, the number and the escaped text.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from dragoman.protocols.shared.openai import encode, pad_frame


class EventEncoder:
    """Encodes and numbers the events of one response."""

    def __init__(self, pad: bool = False) -> None:
        self.count = 0
        self._pad = pad

    def encode_event(self, kind: str, **fields: object) -> bytes:
        number, self.count = self.count, self.count + 1
        body = encode({"type": kind, "sequence_number": number, **fields})
        frame = b"event: %b\ndata: %b\n\n" % (kind.encode(), body)
        return pad_frame(frame) if self._pad and kind.endswith(".delta") else frame

    def encode_head(self, kind: str, **fields: object) -> bytes:
        """Encode what comes before the number in an event that only adds text."""
        body = encode({"type": kind, **fields})[:-1]
        return b'event: %b\ndata: %b,"sequence_number":' % (kind.encode(), body)

    def encode_text_delta(self, head: bytes, text: str) -> bytes:
        number = self.count
        self.count = number + 1
        frame = b'%b%d,"delta":%b}\n\n' % (head, number, encode(text))
        return pad_frame(frame) if self._pad else frame


class _EventType(Struct):
    type: str


def make_frame(event: bytes) -> bytes:
    """Return the frame of an event's JSON."""
    kind = msgspec.json.decode(event, type=_EventType).type
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), event)


def get_frame_json(frame: bytes, stream_id: str | None = None) -> bytes:
    """Return the JSON of a frame, with the id of a WebSocket stream if there is one."""
    return add_stream_id(frame.partition(b"\ndata: ")[2][:-2], stream_id)


def add_stream_id(event: bytes, stream_id: str | None) -> bytes:
    return event if stream_id is None else b'%b,"stream_id":%b}' % (event[:-1], encode(stream_id))
