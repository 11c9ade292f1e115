"""Decode and validate the remote MCP servers that a request declares as tools."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dragoman.errors import BadRequest, InvalidValue
from dragoman.protocols.shared.json_body import convert_value
from dragoman.types import Json

ToolNames: TypeAlias = Annotated[list[str], Meta(max_length=4096)]
_LABEL = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,63}")
_URL = re.compile(r"https?://[^\s\x00-\x20\x7f]+", re.IGNORECASE)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9a-zA-Z-]+")
_LINE_BREAK = re.compile(r"[\r\n\0]")


class ToolFilter(Struct):
    """Matches tools by name, by whether they only read, or by both."""

    tool_names: ToolNames | None = None
    read_only: bool | None = None

    def matches(self, name: str, read_only: bool) -> bool:
        if self.tool_names is not None and name not in self.tool_names:
            return False
        return self.read_only in (None, read_only)


class ApprovalFilter(Struct):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpTool(Struct, kw_only=True):
    """A server whose tools the model may call."""

    server_label: str
    server_url: Annotated[str, Meta(max_length=4096)] | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    server_description: str | None = None
    authorization: Annotated[str, Meta(max_length=65536)] | None = None
    headers: Annotated[dict[str, str], Meta(max_length=64)] | None = None
    allowed_tools: ToolNames | ToolFilter | None = None
    require_approval: str | ApprovalFilter | None = None

    def __repr__(self) -> str:  # the fields contain secrets
        return f"McpTool({self.server_label!r})"

    def allows(self, name: str, read_only: bool = False) -> bool:
        """Return whether the model may see a tool."""
        match self.allowed_tools:
            case None:
                return True
            case ToolFilter() as allowed:
                return allowed.matches(name, read_only)
        return name in self.allowed_tools

    def needs_approval(self, name: str, read_only: bool = False) -> bool:
        """Return whether the client must approve a call, which is the default."""
        match self.require_approval:
            case "never":
                return False
            case ApprovalFilter(always=always, never=never):
                if always is not None and always.matches(name, read_only):
                    return True
                return never is None or not never.matches(name, read_only)
        return True


def decode_mcp_servers(tools: Iterable[tuple[dict[str, Json], str]]) -> list[McpTool]:
    """Decode the servers among the tools, each of which comes with its path in the request."""
    servers: dict[str, McpTool] = {}
    for tool, path in tools:
        if tool.get("type") == "mcp":
            server = _decode_server(tool, path)
            if server.server_label in servers:
                raise _make_invalid_value_error(
                    f"{path}.server_label", "is the label of two servers"
                )
            servers[server.server_label] = server
    return list(servers.values())


def _decode_server(tool: dict[str, Json], path: str) -> McpTool:
    server: McpTool = convert_value(tool, McpTool, path)
    if not _LABEL.fullmatch(server.server_label):
        raise _make_invalid_value_error(
            f"{path}.server_label",
            "must be a letter, then letters, digits, underscores and dashes, at most 64",
        )
    if server.server_url is not None and not _URL.fullmatch(server.server_url):
        raise _make_invalid_value_error(
            f"{path}.server_url", "must be a URL that starts with http:// or https://"
        )
    if server.require_approval not in (None, "always", "never") and isinstance(
        server.require_approval, str
    ):
        raise _make_invalid_value_error(
            f"{path}.require_approval", "must be `always`, `never` or an object"
        )
    if _LINE_BREAK.search(server.authorization or ""):
        raise _make_invalid_value_error(f"{path}.authorization", "must be one line")
    for name, value in (server.headers or {}).items():
        if not _HEADER.fullmatch(name) or _LINE_BREAK.search(value):
            raise _make_invalid_value_error(
                f"{path}.headers", "must be names and values of HTTP headers"
            )
    return server


def _make_invalid_value_error(path: str, why: str) -> BadRequest:
    return InvalidValue(f"`{path}` {why}.", param=path)
