"""The ends of things: last events, what a socket is told besides, a conversation made short."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.errors import DragomanError
from dragoman.events import Usage
from dragoman.protocols.responses.encode.frames import add_stream_id
from dragoman.protocols.responses.encode.resource import ENDS, encode_usage
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.openai import encode

_LAST = tuple(f"event: {kind}\n".encode() for kind in set(ENDS.values()))
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def is_final_event(frame: bytes) -> bool:
    """Whether an event is one that a response ends with."""
    return frame.startswith(_LAST)


def encode_final_event(body: bytes, number: int) -> bytes:
    """The last event of a response that ended without telling it."""
    kept = _decode(body)
    kind = ENDS[kept["status"]]
    event = encode({"type": kind, "sequence_number": number, "response": kept})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), event)


def encode_websocket_error(error: DragomanError, status: int, stream: str | None = None) -> bytes:
    """An error as a text of a socket, which stays open."""
    what = {"code": error.code, "message": error.message, "param": error.param}
    text = encode({"type": "error", "status": status, "error": {"type": error.type, **what}})
    return add_stream_id(text, stream)


def encode_websocket_warning(said: Sequence[str], stream: str | None = None) -> bytes:
    """What is not kept to, as a text of a socket. Clients pass over kinds they do not know."""
    text = encode({"type": "dragoman.warning", "warnings": list(dict.fromkeys(said))})
    return add_stream_id(text, stream)


def encode_compaction(name: str, created: int, output: Sequence[Item], spent: Usage) -> bytes:
    """A conversation made short."""
    return encode(
        {
            "id": name,
            "object": "response.compaction",
            "created_at": created,
            "output": output,
            "usage": encode_usage(spent),
        }
    )
