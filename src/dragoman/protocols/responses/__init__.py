"""The Responses API: a conversation of items that the server may store.

decode/    the request body: its fields, items and tools, and the `Request` they make
encode/    the response: events item by item, the resource as a whole, replayed stored responses
secrets    removes secrets from tools before they are stored or shown
types      data types of both decoding and encoding
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.responses.decode.fields import DecodedRequest, ResponseRequest
from dragoman.protocols.responses.decode.items import make_compaction_item
from dragoman.protocols.responses.decode.mcp import McpTool
from dragoman.protocols.responses.decode.request import (
    continue_request,
    decode_compact_request,
    decode_count_request,
    decode_request,
    decode_websocket_request,
    get_mcp_servers,
    get_references,
    get_stream_id,
    get_tool_origins,
    to_request,
)
from dragoman.protocols.responses.decode.tools import make_remote_name
from dragoman.protocols.responses.encode.echo import make_echoed_fields
from dragoman.protocols.responses.encode.encoder import ResponseEncoder
from dragoman.protocols.responses.encode.endings import (
    encode_compaction,
    encode_final_event,
    encode_websocket_error,
    encode_websocket_warning,
    is_final_event,
)
from dragoman.protocols.responses.encode.frames import get_frame_json
from dragoman.protocols.responses.encode.replay import encode_stored_events
from dragoman.protocols.responses.encode.resource import mark_failed
from dragoman.protocols.responses.types import RemoteCall, ResponseInfo, ToolOrigin
from dragoman.protocols.shared.openai import encode_error

__all__ = [
    "DIALECT",
    "DecodedRequest",
    "McpTool",
    "RemoteCall",
    "ResponseEncoder",
    "ResponseInfo",
    "ResponseRequest",
    "ToolOrigin",
    "continue_request",
    "decode_compact_request",
    "decode_count_request",
    "decode_request",
    "decode_websocket_request",
    "encode_compaction",
    "encode_error",
    "encode_final_event",
    "encode_stored_events",
    "encode_websocket_error",
    "encode_websocket_warning",
    "get_frame_json",
    "get_mcp_servers",
    "get_references",
    "get_stream_id",
    "get_tool_origins",
    "is_final_event",
    "make_compaction_item",
    "make_echoed_fields",
    "make_remote_name",
    "mark_failed",
    "to_request",
]

# A response is encoded by its run, which builds the encoder itself; see `dragoman.responses`.
DIALECT: Dialect[DecodedRequest] = Dialect(
    name="responses", decode=pass_strict(decode_request), encode_error=encode_error
)
