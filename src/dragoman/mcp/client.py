"""A client for remote tools, over the Model Context Protocol.

Each server gets one session, opened on first use and kept until the client is closed. The MCP SDK
is large: it is imported in a thread when the first server is used, and never before.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dragoman.mcp.types import ListedTool, McpServer, ToolCallResult, ToolsUnavailable
from dragoman.mcp.url_guard import DEFAULT_PORTS, UrlGuard
from dragoman.types import Json

if TYPE_CHECKING:
    from dragoman.mcp.session import McpSession


class McpClient:
    """A `ToolClient` over MCP; each operation may take `timeout` seconds."""

    def __init__(self, guard: UrlGuard, timeout: float) -> None:
        self._guard = guard
        self._timeout = timeout
        self._sessions: dict[str, McpSession] = {}
        self._importing = asyncio.Lock()

    async def list_tools(self, server: McpServer) -> list[ListedTool]:
        try:
            async with asyncio.timeout(self._timeout):
                return await (await self._get_session(server)).list_tools()
        except TimeoutError:
            raise ToolsUnavailable(self._make_timeout_message("server")) from None

    async def call_tool(
        self, server: McpServer, name: str, arguments: dict[str, Json], max_chars: int
    ) -> ToolCallResult:
        try:
            async with asyncio.timeout(self._timeout):
                session = await self._get_session(server)
                result = await session.call_tool(name, arguments, max_chars)
                if session.is_expired:  # the server did not execute the call
                    session = await self._get_session(server)
                    result = await session.call_tool(name, arguments, max_chars)
                return result
        except TimeoutError:
            return ToolCallResult(error=self._make_timeout_message("tool"))
        except ToolsUnavailable as error:
            return ToolCallResult(error=str(error))

    def _make_timeout_message(self, subject: str) -> str:
        return f"The {subject} did not answer within {self._timeout:g} seconds."

    async def _get_session(self, server: McpServer) -> McpSession:
        async with self._importing:
            module = await asyncio.to_thread(importlib.import_module, "dragoman.mcp.session")
        session = self._sessions.get(server.label)
        if session is None or session.is_closed:
            if session is not None:
                session.close()
            session = self._sessions[server.label] = module.McpSession(
                server, self._guard, self._timeout
            )
        return session

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    async def aclose(self) -> None:
        """Close all sessions, and wait until they are closed."""
        self.close()
        for session in self._sessions.values():
            await session.wait_closed()


def is_installed() -> bool:
    """Whether the MCP SDK is installed."""
    return importlib.util.find_spec("mcp") is not None


def parse_servers(pairs: Iterable[str]) -> dict[str, McpServer]:
    """Parse the operator's servers, LABEL=URL each."""
    servers: dict[str, McpServer] = {}
    for pair in pairs:
        label, equals, url = pair.partition("=")
        scheme = url.partition("://")[0].lower()
        if not (label and equals) or scheme not in DEFAULT_PORTS or label in servers:
            schemes = " or ".join(f"{name}://…" for name in DEFAULT_PORTS)
            name = label.partition("://")[0]  # a URL without a label may have a password
            raise ValueError(
                f"--mcp: {name!r} must be LABEL=URL, with {schemes}, and each label once."
            )
        servers[label] = McpServer(label=label, url=url, is_configured=True)
    return servers
