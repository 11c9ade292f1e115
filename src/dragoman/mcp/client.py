"""The toolbox: remote servers over the Model Context Protocol.

A server has one session for as long as the toolbox is open, opened when it is first asked. The SDK
is a large thing; it is loaded beside the loop when the first server is asked, and never before.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dragoman.mcp.types import CallResult, ListedTool, McpServer, ToolsUnavailable
from dragoman.mcp.url_guard import PORTS, UrlGuard

if TYPE_CHECKING:
    from dragoman.mcp.session import McpSession


class McpClient:
    """A toolbox over MCP; `seconds` is how long anything that a server is asked may take."""

    def __init__(self, places: UrlGuard, seconds: float) -> None:
        self._places = places
        self._seconds = seconds
        self._sessions: dict[str, McpSession] = {}
        self._loading = asyncio.Lock()

    async def list_tools(self, server: McpServer) -> list[ListedTool]:
        try:
            async with asyncio.timeout(self._seconds):
                return await (await self._session(server)).list_tools()
        except TimeoutError:
            raise ToolsUnavailable(self._late("server")) from None

    async def call_tool(
        self, server: McpServer, name: str, arguments: dict[str, Any], most: int
    ) -> CallResult:
        try:
            async with asyncio.timeout(self._seconds):
                session = await self._session(server)
                outcome = await session.call_tool(name, arguments, most)
                if session.is_expired:  # the server forgot us, and did nothing
                    session = await self._session(server)
                    outcome = await session.call_tool(name, arguments, most)
                return outcome
        except TimeoutError:
            return CallResult(error=self._late("tool"))
        except ToolsUnavailable as error:
            return CallResult(error=str(error))

    def _late(self, who: str) -> str:
        return f"The {who} did not answer within {self._seconds:g} seconds."

    async def _session(self, server: McpServer) -> McpSession:
        async with self._loading:
            module = await asyncio.to_thread(importlib.import_module, "dragoman.mcp.session")
        known = self._sessions.get(server.label)
        if known is None or known.is_closed:
            if known is not None:
                known.close()
            known = self._sessions[server.label] = module.Session(
                server, self._places, self._seconds
            )
        return known

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    async def aclose(self) -> None:
        """Close, and wait until all is said."""
        self.close()
        for session in self._sessions.values():
            await session.wait_closed()


def is_installed() -> bool:
    """Whether the SDK is there."""
    return importlib.util.find_spec("mcp") is not None


def parse_servers(pairs: Iterable[str]) -> dict[str, McpServer]:
    """Servers as an operator names them, LABEL=URL each."""
    found: dict[str, McpServer] = {}
    for pair in pairs:
        label, equals, url = pair.partition("=")
        scheme = url.partition("://")[0].lower()
        if not (label and equals) or scheme not in PORTS or label in found:
            raise ValueError(f"--mcp wants LABEL=URL, each label once, not {label!r}.")
        found[label] = McpServer(label=label, url=url, is_configured=True)
    return found
