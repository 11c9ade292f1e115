"""The MCP client as a command, for the conformance suite: lists tools and calls each of them once.

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

CONTEXT = "MCP_CONFORMANCE_CONTEXT"  # set by the suite: the calls to make
EXAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 2,
    "number": 2.5,
    "boolean": True,
    "array": [],
    "object": {},
}


def make_arguments(tool: ListedTool, first: ListedTool) -> dict[str, Any]:
    """Examples for the required arguments; for a `schema`, that of the first tool."""
    properties = tool.input_schema.get("properties", {})
    examples = {
        name: properties[name].get("default", EXAMPLES.get(properties[name].get("type"), "text"))
        for name in tool.input_schema.get("required", ())
    }
    return examples | ({"schema": first.input_schema} if "schema" in examples else {})


def list_calls(tools: list[ListedTool]) -> list[tuple[str, dict[str, Any]]]:
    context = msgspec.json.decode(os.environ.get(CONTEXT) or "{}")
    requested = context.get("toolCalls")
    if requested is None:
        return [(tool.name, make_arguments(tool, tools[0])) for tool in tools]
    return [(call["name"], call.get("arguments", {})) for call in requested]


async def run(url: str) -> None:
    endpoint = parse_endpoint(url)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    client = McpClient(UrlGuard([f"{host}:{endpoint.port}"]), 20.0)
    server = McpServer(label="suite", url=url)
    try:
        tools = await client.list_tools(server)
        for name, arguments in list_calls(tools):
            print(name, arguments, await client.call_tool(server, name, arguments, 10_000))
    finally:
        await client.aclose()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[-1]))
