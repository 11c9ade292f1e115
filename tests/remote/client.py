"""The toolbox as a command, for the conformance suite: lists a server's tools and calls each once.

python -m tests.remote.client URL
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import msgspec

from dragoman.mcp.client import McpClient
from dragoman.mcp.types import ListedTool, McpServer
from dragoman.mcp.url_guard import UrlGuard, parse_endpoint

CONTEXT = "MCP_CONFORMANCE_CONTEXT"  # what the suite has to say to a client: calls to make
EXAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 2,
    "number": 2.5,
    "boolean": True,
    "array": [],
    "object": {},
}


def make_arguments(tool: ListedTool, first: ListedTool) -> dict[str, Any]:
    """Something for all that a tool must be given; for a `schema`, that of the first tool."""
    wanted = tool.input_schema.get("properties", {})
    examples = {
        name: wanted[name].get("default", EXAMPLES.get(wanted[name].get("type"), "text"))
        for name in tool.input_schema.get("required", ())
    }
    return examples | ({"schema": first.input_schema} if "schema" in examples else {})


def list_calls(tools: list[ListedTool]) -> list[tuple[str, dict[str, Any]]]:
    context = msgspec.json.decode(os.environ.get(CONTEXT) or "{}")
    wanted = context.get("toolCalls")
    if wanted is None:
        return [(tool.name, make_arguments(tool, tools[0])) for tool in tools]
    return [(one["name"], one.get("arguments", {})) for one in wanted]


async def run(url: str) -> None:
    where = parse_endpoint(url)
    host = f"[{where.host}]" if ":" in where.host else where.host
    tools = McpClient(UrlGuard([f"{host}:{where.port}"]), 20.0)
    server = McpServer(label="suite", url=url)
    try:
        found = await tools.list_tools(server)
        for name, given in list_calls(found):
            print(name, given, await tools.call_tool(server, name, given, 10_000))
    finally:
        await tools.aclose()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[-1]))
