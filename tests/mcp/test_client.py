"""The MCP client, with real servers over HTTP, and with faulty and hostile ones."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest

from dragoman.mcp.client import McpClient, parse_servers
from dragoman.mcp.types import ListedTool, McpServer, ToolCallResult, ToolsUnavailable
from dragoman.mcp.url_guard import UrlGuard
from tests.support.mcp_servers import (
    LocalServer,
    answer_initialize,
    make_raw_app,
    serve_app,
    serve_tools,
)
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow

SERVER_OPTIONS: dict[str, dict[str, Any]] = {
    "newest": {},
    "json": {"json_response": True},
    "stateless": {"stateless_http": True},
    "older": {"transport": "sse"},
}


@pytest.fixture(scope="module", params=SERVER_OPTIONS)
def server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    with serve_tools(**SERVER_OPTIONS[request.param]) as local_server:
        local_server.kind = request.param
        yield local_server


def run_with_client(
    server: LocalServer,
    work: Callable[[McpClient, McpServer], Awaitable[Any]],
    seconds: float = 20.0,
) -> Any:
    """Run a function with a client and a server that a request named."""

    async def run() -> Any:
        client = McpClient(UrlGuard([server.host]), seconds)
        try:
            return await work(client, McpServer(label="test", url=server.url))
        finally:
            await client.aclose()

    return asyncio.run(run())


def call_tool(
    server: LocalServer, name: str, arguments: Any = None, seconds: float = 20.0
) -> ToolCallResult:
    result = run_with_client(
        server,
        lambda client, target: client.call_tool(target, name, arguments or {}, 1000),
        seconds,
    )
    assert isinstance(result, ToolCallResult)
    return result


def list_tools(server: LocalServer) -> dict[str, ListedTool]:
    tools = run_with_client(server, lambda client, target: client.list_tools(target))
    return {tool.name: tool for tool in tools}


# valid servers


def test_tools_are_listed(server: LocalServer) -> None:
    tools = list_tools(server)
    assert {"add", "look", "fail", "slow", "big", "structured", "mixed"} <= tools.keys()
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].input_schema["properties"].keys() == {"a", "b"}
    assert tools["look"].is_read_only
    assert not tools["add"].is_read_only


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("add", {"a": 1, "b": 2}, ToolCallResult(output="The sum is 3.")),
        ("only.structured", {}, ToolCallResult(output='{"größe": 42}')),
        ("structured", {}, ToolCallResult(output='{\n  "answer": 42\n}')),
        ("fail", {}, ToolCallResult(error="Error executing tool fail")),
        ("nothing", {}, ToolCallResult(error="Unknown tool: nothing")),
    ],
)
def test_a_call_returns_its_result(
    server: LocalServer, name: str, arguments: Any, expected: ToolCallResult
) -> None:
    assert call_tool(server, name, arguments) == expected


def test_wrong_arguments_are_reported(server: LocalServer) -> None:
    result = call_tool(server, "add", {"a": "x"})
    assert result.output is None
    assert "valid integer" in (result.error or "")


def test_binary_content_is_described(server: LocalServer) -> None:
    assert call_tool(server, "mixed").output == (
        "Look:\n"
        "[image, image/png, 4,002 bytes; it cannot be shown here]\n"
        "[audio, audio/wav, 4,002 bytes; it cannot be shown here]\n"
        "[resource c at file:///c]\n"
        "[resource at file:///a.txt]\nthe text of a\n"
        "[resource at file:///b.bin, binary, 4,002 bytes; it cannot be shown here]"
    )


def test_a_long_output_is_truncated(server: LocalServer) -> None:
    output = call_tool(server, "big", {"size": 5000}).output
    assert output == "x" * 1000 + "\n[The output is cut here: 1,000 of 5,000 characters are shown.]"


def test_a_response_that_is_far_too_large_is_not_read(server: LocalServer) -> None:
    async def work(client: McpClient, target: McpServer) -> None:
        result = await client.call_tool(target, "big", {"size": 6_000_000}, 1000)
        assert result.output is None
        assert "The server" in (result.error or "")
        assert await client.call_tool(target, "add", {"a": 1, "b": 1}, 1000) == ToolCallResult(
            "The sum is 2."
        )

    run_with_client(server, work)


def test_calls_run_concurrently_in_one_session(server: LocalServer) -> None:
    async def work(client: McpClient, target: McpServer) -> list[ToolCallResult]:
        await client.list_tools(target)
        return await asyncio.gather(
            *(client.call_tool(target, "add", {"a": n, "b": n}, 1000) for n in range(20))
        )

    before = len(server.log.requests)
    calls = run_with_client(server, work)
    assert [result.output for result in calls] == [f"The sum is {2 * n}." for n in range(20)]
    requests = server.log.requests[before:]
    ids = {request.get("mcp-session-id") for request in requests} - {None}
    assert len(ids) <= 1


def test_a_call_times_out(server: LocalServer) -> None:
    server.log.slow_cancelled.clear()
    result = call_tool(server, "slow", seconds=0.5)
    assert result == ToolCallResult(error="The tool did not answer within 0.5 seconds.")
    assert was_cancelled(server)


def was_cancelled(server: LocalServer) -> bool:
    """Whether the server got the cancellation, if its kind can get one during a call."""
    return server.kind == "json" or server.log.slow_cancelled.wait(10)


@measures_time
def test_cancelling_a_call_cancels_it_on_the_server(server: LocalServer) -> None:
    """The connection is closed at once, too."""
    log = server.log
    log.slow_started.clear()
    log.slow_cancelled.clear()

    async def work(client: McpClient, target: McpServer) -> float:
        call = asyncio.create_task(client.call_tool(target, "slow", {}, 1000))
        assert await asyncio.to_thread(log.slow_started.wait, 10)
        started = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.aclose()
        return time.monotonic() - started

    assert run_with_client(server, work) < 5
    assert was_cancelled(server)


def test_a_client_is_closed_without_waiting() -> None:
    async def work(client: McpClient, target: McpServer) -> None:
        waiting = asyncio.create_task(client.list_tools(target))
        assert await asyncio.to_thread(asked.wait, 10)
        client.close()
        with pytest.raises(ToolsUnavailable):
            await waiting

    asked = threading.Event()

    async def never(_: Any) -> None:
        asked.set()
        await asyncio.sleep(3600)

    with serve_app(make_raw_app(never)) as server:
        run_with_client(server, work)


def test_headers_are_sent_and_reserved_ones_are_rejected(server: LocalServer) -> None:
    async def work(client: McpClient, target: McpServer) -> None:
        with_key = msgspec.structs.replace(target, headers={"Authorization": "Bearer s3cret"})
        await client.list_tools(with_key)
        assert "s3cret" not in repr(with_key)

    before = len(server.log.requests)
    run_with_client(server, work)
    requests = server.log.requests[before:]
    assert requests
    assert all(request["authorization"] == "Bearer s3cret" for request in requests)
    assert all(request["user-agent"] == "dragoman" for request in requests)
    for name in ("Host", "content-length", "Mcp-Session-Id", "Transfer-Encoding"):
        headers = {name: "evil"}
        message = get_list_error(server, headers=headers)
        assert message == f"The header `{name}` must not be set."


def get_list_error(server: LocalServer, seconds: float = 20.0, **fields: Any) -> str:
    """Why a server's tools cannot be listed."""

    async def work(client: McpClient, target: McpServer) -> str:
        with pytest.raises(ToolsUnavailable) as error:
            await client.list_tools(msgspec.structs.replace(target, **fields))
        return str(error.value)

    return str(run_with_client(server, work, seconds=seconds))


def test_an_expired_session_is_opened_again() -> None:
    sessions: list[str] = []

    def answer(message: dict[str, Any]) -> Any:
        if message["method"] == "initialize":
            sessions.append("another")
            return answer_initialize(message)
        if message["method"] != "tools/call":
            return {"code": -32601, "message": "Method not found"}
        if len(sessions) == 1:
            return b""  # sent with status 404: the session is unknown
        return {"content": [{"type": "text", "text": "here"}]}

    headers = {"content-type": "text/plain"}
    app = make_raw_app(answer, status=404, headers=headers, session="abc")
    with serve_app(app) as server:
        assert call_tool(server, "any") == ToolCallResult("here")
    assert len(sessions) == 2


# faulty and hostile servers


def test_an_unreachable_server_is_reported() -> None:
    with serve_tools() as server:
        pass
    assert get_list_error(server) == "The server could not be reached."
    assert call_tool(server, "add") == ToolCallResult(error="The server could not be reached.")


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (401, {"content-type": "text/plain"}, b"no", "requires authorization"),
        (403, {}, b"{}", "requires authorization"),
        (404, {"content-type": "text/html"}, b"<html>", "answered with HTTP 404"),
        (500, {}, b'{"detail": "secret"}', "answered with HTTP 500"),
        (503, {"content-type": "text/plain"}, b"Traceback", "answered with HTTP 503"),
        (200, {"content-type": "text/html"}, b"<html>", "Unexpected content type"),
        (200, {}, b"not json", "could not be parsed"),
        (200, {}, b"[" * 100_000, "could not be parsed"),
        (200, {}, b'{"jsonrpc": "2.0"}', "could not be parsed"),
        (200, {"content-type": "text/event-stream"}, b"data: {}\n\n", "could not be parsed"),
        (200, {"content-type": "text/event-stream"}, b"", "closed the connection"),
        (200, {"content-encoding": "gzip"}, b"\x1f\x8b", "compressed"),
        (202, {}, b"", "202"),
    ],
)
def test_servers_that_do_not_speak_the_protocol(
    status: int, headers: dict[str, str], body: bytes, expected: str
) -> None:
    app = make_raw_app(lambda _: body, status=status, headers=headers)
    with serve_app(app) as server:
        message = get_list_error(server, seconds=10)
    assert expected in message
    for secret in ("Traceback", "secret", "127.0.0.1", "Error", "validation"):
        assert secret not in message


def make_listing_app(tools: Any, **more: Any) -> Any:
    """A server with these tools."""

    def answer(message: dict[str, Any]) -> Any:
        if message["method"] != "tools/list":
            return answer_initialize(message)
        return tools(message) if callable(tools) else {"tools": tools, **more}

    return make_raw_app(answer)


def make_deep_schema(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("name", "schema", "expected"),
    [
        ("plain", make_deep_schema(3), make_deep_schema(3)),
        ("deep", make_deep_schema(40), {"type": "object"}),
        ("large", {"type": "object", "description": "x" * 70_000}, {"type": "object"}),
        ("reference", {"type": "object", "$ref": "http://127.0.0.1/"}, None),
        ("", {"type": "object"}, ()),
        ("a\nb", {"type": "object"}, ()),
        ("n" * 500, {"type": "object"}, ()),
    ],
)
def test_listed_tools_have_limits(name: str, schema: Any, expected: Any) -> None:
    tool = {"name": name, "inputSchema": schema, "description": "d" * 50_000}
    fine = {"name": "fine", "inputSchema": {"type": "object"}}
    with serve_app(make_listing_app([tool, fine])) as server:
        tools = list_tools(server)
    assert "fine" in tools
    if expected == ():
        assert tools.keys() == {"fine"}
    else:
        assert tools[name].input_schema == (expected or schema)
        assert len(tools[name].description or "") < 10_000


def test_all_pages_of_a_list_are_read() -> None:
    def page(message: dict[str, Any]) -> Any:
        number = int((message.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(number + 1)} if number < 4 else {}
        return {"tools": [{"name": f"t{number}", "inputSchema": {"type": "object"}}], **more}

    with serve_app(make_listing_app(page)) as server:
        assert list_tools(server).keys() == {f"t{number}" for number in range(5)}


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "does not end"), (300, "has more than 1,024 tools")]
)
def test_an_endless_list_is_rejected(size: int, expected: str) -> None:
    pages = iter(range(1000))

    def page(message: dict[str, Any]) -> Any:
        number = next(pages)
        names = [f"t{number}-{index}" for index in range(size)]
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        return {"tools": tools, "nextCursor": "on"}

    with serve_app(make_listing_app(page)) as server:
        assert expected in get_list_error(server)


def test_a_list_that_is_too_long_is_rejected() -> None:
    schema = {"type": "object", "description": "x" * 60_000}
    pages = iter(range(1000))

    def page(message: dict[str, Any]) -> Any:
        tools = [{"name": f"t{next(pages)}", "inputSchema": schema} for _ in range(20)]
        return {"tools": tools, "nextCursor": "on"}

    with serve_app(make_listing_app(page)) as server:
        assert get_list_error(server) == "The server's tool list is too long."


def test_a_result_is_not_validated_with_the_servers_schema() -> None:
    """Matching its pattern would take for ever."""
    schema = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    result = {"content": [], "structuredContent": {"a": "a" * 40 + "b"}}

    def answer(message: dict[str, Any]) -> Any:
        kinds: dict[str, Any] = {"tools/list": {"tools": [tool]}, "tools/call": result}
        return kinds.get(message["method"]) or answer_initialize(message)

    async def work(client: McpClient, target: McpServer) -> ToolCallResult:
        await client.list_tools(target)
        return await client.call_tool(target, "t", {}, 1000)

    with serve_app(make_raw_app(answer)) as server:
        assert json.loads(run_with_client(server, work).output) == result["structuredContent"]


def test_a_server_cannot_write_into_our_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serve_app(make_raw_app(lambda _: b"not json\ninjected")) as server,
        caplog.at_level(logging.DEBUG),
    ):
        caplog.handler.setLevel(logging.WARNING)
        get_list_error(server)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# configured servers


def test_an_operator_can_configure_any_server(server: LocalServer) -> None:
    async def work() -> list[ListedTool]:
        client = McpClient(UrlGuard(), 20.0)
        try:
            return await client.list_tools(parse_servers([f"test={server.url}"])["test"])
        finally:
            await client.aclose()

    assert asyncio.run(work())


@pytest.mark.parametrize(
    "text",
    ["a", "=http://a", "a=", "a=b", "a=ftp://b", "a=file:///etc", "https://me:hunter2@a/?b=c"],
)
def test_a_configured_server_needs_a_label_and_a_url(text: str) -> None:
    with pytest.raises(ValueError, match="LABEL=URL") as raised:
        parse_servers([text])
    assert "hunter2" not in str(raised.value)
