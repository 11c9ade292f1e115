"""The Responses dialect: a conversation of items, kept by the server.

`request` reads a body by its `fields`, `items` are what a conversation is made of, `messages` tells
them to the model, `tools` and `mcp` are what it may call, `echo` is what a response repeats of its
request. `writer` writes the answer as `frames`, item by item; `resource` is the response as a
whole, and `replay` tells one again that was kept.
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, needs_strict_only
from dragoman.protocols.responses.decode.fields import Asked as Asked
from dragoman.protocols.responses.decode.fields import ResponseRequest as ResponseRequest
from dragoman.protocols.responses.decode.items import compaction as compaction
from dragoman.protocols.responses.decode.items import fresh as fresh
from dragoman.protocols.responses.decode.mcp import McpTool as McpTool
from dragoman.protocols.responses.decode.request import decode as decode
from dragoman.protocols.responses.decode.request import decode_compact as decode_compact
from dragoman.protocols.responses.decode.request import decode_count as decode_count
from dragoman.protocols.responses.decode.request import decode_frame as decode_frame
from dragoman.protocols.responses.decode.request import known as known
from dragoman.protocols.responses.decode.request import mcp_tools as mcp_tools
from dragoman.protocols.responses.decode.request import onward as onward
from dragoman.protocols.responses.decode.request import references as references
from dragoman.protocols.responses.decode.request import stream_of as stream_of
from dragoman.protocols.responses.decode.request import to_request as to_request
from dragoman.protocols.responses.decode.tools import remote_name as remote_name
from dragoman.protocols.responses.encode.echo import echo as echo
from dragoman.protocols.responses.encode.encoder import ResponseEncoder as ResponseEncoder
from dragoman.protocols.responses.encode.endings import compacted as compacted
from dragoman.protocols.responses.encode.endings import ending as ending
from dragoman.protocols.responses.encode.endings import is_last as is_last
from dragoman.protocols.responses.encode.endings import socket_error as socket_error
from dragoman.protocols.responses.encode.endings import warning as warning
from dragoman.protocols.responses.encode.frames import unframed as unframed
from dragoman.protocols.responses.encode.replay import replay as replay
from dragoman.protocols.responses.encode.resource import cancelled as cancelled
from dragoman.protocols.responses.encode.resource import failed as failed
from dragoman.protocols.responses.types import Frame as Frame
from dragoman.protocols.responses.types import Known as Known
from dragoman.protocols.responses.types import RemoteCall as RemoteCall
from dragoman.protocols.shared.openai import encode_error as encode_error

# A response is encoded by its run, which builds the encoder itself; see `dragoman.responses`.
DIALECT: Dialect[Asked] = Dialect(
    name="responses", decode=needs_strict_only(decode), encode_error=encode_error
)
