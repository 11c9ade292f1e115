"""Encode final events, WebSocket errors and warnings, and compacted conversations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.errors import DragomanError
from dragoman.events import Usage
from dragoman.protocols.responses.encode.frames import add_stream_id
from dragoman.protocols.responses.encode.resource import FINAL_EVENTS, encode_usage
from dragoman.protocols.responses.types import Item
from dragoman.protocols.shared.openai import encode
from dragoman.types import Json

_FINAL_PREFIXES = tuple(f"event: {kind}\n".encode() for kind in set(FINAL_EVENTS.values()))
_decode = msgspec.json.Decoder(dict[str, Json]).decode


def is_final_event(frame: bytes) -> bool:
    """Return whether the frame is the last one of a response."""
    return frame.startswith(_FINAL_PREFIXES)


def encode_final_event(body: bytes, number: int) -> bytes:
    """Encode the last event of a stored response whose stream ended without one."""
    resource = _decode(body)
    kind = FINAL_EVENTS[resource["status"]]
    event = encode({"type": kind, "sequence_number": number, "response": resource})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), event)


def encode_websocket_error(
    error: DragomanError, status: int, stream_id: str | None = None
) -> bytes:
    """Encode an error as a WebSocket message; the connection stays open."""
    fields = {"code": error.code, "message": error.message, "param": error.param}
    event = encode({"type": "error", "status": status, "error": {"type": error.type, **fields}})
    return add_stream_id(event, stream_id)


def encode_websocket_warning(warnings: Sequence[str], stream_id: str | None = None) -> bytes:
    """Encode warnings as a WebSocket message; clients ignore event types they do not know."""
    event = encode({"type": "dragoman.warning", "warnings": list(dict.fromkeys(warnings))})
    return add_stream_id(event, stream_id)


def encode_compaction(name: str, created: int, output: Sequence[Item], usage: Usage) -> bytes:
    """Encode a conversation that was replaced by a summary."""
    return encode(
        {
            "id": name,
            "object": "response.compaction",
            "created_at": created,
            "output": output,
            "usage": encode_usage(usage),
        }
    )
