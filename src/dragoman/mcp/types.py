"""Remote tools: what is known of a server, what it offers, what a call of it gave.

A `Toolbox` is the one way to them. It holds its connections until it is closed. What a server does
wrong in a call is no exception: a failure is an `Outcome` that the model can read.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct


class McpServer(Struct, frozen=True, kw_only=True):
    """A server of remote tools, as a request or the configuration names it."""

    label: str
    url: str = ""
    headers: dict[str, str] = {}
    is_configured: bool = False  # by the operator, who may name any address; a request may not

    def __repr__(self) -> str:  # it has secrets in it
        return f"Server({self.label!r})"


class ListedTool(Struct, frozen=True, kw_only=True):
    """A tool that a server offers."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}
    annotations: dict[str, Any] | None = None

    @property
    def read_only(self) -> bool:
        return (self.annotations or {}).get("readOnlyHint") is True


class CallResult(Struct, frozen=True):
    """What came of a call: an output, or an error in words."""

    output: str | None = None
    error: str | None = None


class ToolsUnavailable(Exception):
    """A server's tools cannot be listed; the message is for the client."""


class ToolClient(Protocol):
    async def list_tools(self, server: McpServer) -> list[ListedTool]:
        """What a server offers, or `ToolsUnavailable`."""
        ...

    async def call_tool(
        self, server: McpServer, name: str, arguments: dict[str, Any], most: int
    ) -> CallResult:
        """What came of a call, in at most so many characters."""
        ...

    def close(self) -> None:
        """Let go of all servers, without waiting for them."""
        ...
