"""Remote tools: servers, their tools, and the results of calls.

A `ToolClient` is the only way to reach them. It holds its connections until it is closed. A call
that fails raises nothing: its `ToolCallResult` has an error that the model can read.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from dragoman.types import Json


class McpServer(Struct, frozen=True, kw_only=True):
    """A server of remote tools, from a request or from the configuration."""

    label: str
    url: str = ""
    headers: dict[str, str] = {}
    is_configured: bool = False  # by the operator, who may use any address; a request may not

    def __repr__(self) -> str:  # the URL and the headers may contain secrets
        return f"McpServer({self.label!r})"


class ListedTool(Struct, frozen=True, kw_only=True):
    """A tool of a server."""

    name: str
    description: str | None = None
    input_schema: dict[str, Json] = {}
    annotations: dict[str, Json] | None = None

    @property
    def is_read_only(self) -> bool:
        return (self.annotations or {}).get("readOnlyHint") is True


class ResultMedia(Struct, frozen=True, kw_only=True):
    """A picture or sound in the output of a tool, whose text describes it."""

    kind: Literal["image", "audio"]
    data: str  # base64
    media_type: str
    description: str  # in the text: that it cannot be shown
    shown_description: str  # to replace that, if it can


class ToolCallResult(Struct, frozen=True):
    """The result of a call: an output, or an error message."""

    output: str | None = None
    error: str | None = None
    media: tuple[ResultMedia, ...] = ()


class ToolsUnavailable(Exception):
    """A server's tools cannot be listed; the message is for the client."""


class ToolClient(Protocol):
    async def list_tools(self, server: McpServer) -> list[ListedTool]:
        """Return the tools of a server. Raises `ToolsUnavailable`."""
        ...

    async def call_tool(
        self, server: McpServer, name: str, arguments: dict[str, Json], max_chars: int
    ) -> ToolCallResult:
        """Call a tool; the output has at most `max_chars` characters."""
        ...

    def close(self) -> None:
        """Close all connections, without waiting for the servers."""
        ...
