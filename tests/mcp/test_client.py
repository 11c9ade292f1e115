"""The toolbox: real servers of remote tools over HTTP, and servers that mean no good."""

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
from dragoman.mcp.types import CallResult, ListedTool, McpServer, ToolsUnavailable
from dragoman.mcp.url_guard import UrlGuard
from tests.support.mcp_servers import LocalServer, make_raw_app, answer_initialize, serve_app, serve_tools

SERVER_OPTIONS: dict[str, dict[str, Any]] = {
    "newest": {},
    "json": {"json_response": True},
    "stateless": {"stateless_http": True},
    "older": {"transport": "sse"},
}


@pytest.fixture(scope="module", params=SERVER_OPTIONS)
def server(request: pytest.FixtureRequest) -> Iterator[LocalServer]:
    with serve_tools(**SERVER_OPTIONS[request.param]) as made:
        made.kind = request.param
        yield made


def run_with_client(
    server: LocalServer, work: Callable[[McpClient, McpServer], Awaitable[Any]], seconds: float = 20.0
) -> Any:
    """Let a toolbox work with a server that a request named."""

    async def run() -> Any:
        tools = McpClient(UrlGuard([server.host]), seconds)
        try:
            return await work(tools, McpServer(label="test", url=server.url))
        finally:
            await tools.aclose()

    return asyncio.run(run())


def call_tool(
    server: LocalServer, name: str, arguments: Any = None, seconds: float = 20.0
) -> CallResult:
    outcome = run_with_client(server, lambda tools, one: tools.call_tool(one, name, arguments or {}, 1000), seconds)
    assert isinstance(outcome, CallResult)
    return outcome


def list_tools(server: LocalServer) -> dict[str, ListedTool]:
    return {one.name: one for one in run_with_client(server, lambda tools, one: tools.list_tools(one))}


# What works


def test_a_server_says_what_it_offers(server: LocalServer) -> None:
    found = list_tools(server)
    assert {"add", "look", "fail", "slow", "big", "structured", "mixed"} <= found.keys()
    assert found["add"].description == "Add two numbers."
    assert found["add"].input_schema["properties"].keys() == {"a", "b"}
    assert found["look"].read_only
    assert not found["add"].read_only


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [
        ("add", {"a": 1, "b": 2}, CallResult(output="The sum is 3.")),
        ("only.structured", {}, CallResult(output='{"größe": 42}')),
        ("structured", {}, CallResult(output='{\n  "answer": 42\n}')),
        ("fail", {}, CallResult(error="Error executing tool fail")),
        ("nothing", {}, CallResult(error="Unknown tool: nothing")),
    ],
)
def test_a_call_comes_to_something(
    server: LocalServer, name: str, arguments: Any, outcome: CallResult
) -> None:
    assert call_tool(server, name, arguments) == outcome


def test_wrong_arguments_are_told(server: LocalServer) -> None:
    outcome = call_tool(server, "add", {"a": "x"})
    assert outcome.output is None
    assert "valid integer" in (outcome.error or "")


def test_pictures_are_named(server: LocalServer) -> None:
    told = call_tool(server, "mixed").output
    assert told == (
        "Look:\n"
        "[image, image/png, 4,002 bytes; it cannot be shown here]\n"
        "[audio, audio/wav, 4,002 bytes; it cannot be shown here]\n"
        "[resource c at file:///c]\n"
        "[resource at file:///a.txt]\nthe text of a\n"
        "[resource at file:///b.bin, binary, 4,002 bytes; it cannot be shown here]"
    )


def test_an_output_is_cut(server: LocalServer) -> None:
    told = call_tool(server, "big", {"size": 5000}).output
    assert told == "x" * 1000 + "\n[The output is cut here: 1,000 of 5,000 characters are shown.]"


def test_an_answer_that_is_far_too_large_is_not_read(server: LocalServer) -> None:
    async def work(tools: McpClient, one: McpServer) -> None:
        outcome = await tools.call_tool(one, "big", {"size": 6_000_000}, 1000)
        assert outcome.output is None
        assert "The server" in (outcome.error or "")
        assert await tools.call_tool(one, "add", {"a": 1, "b": 1}, 1000) == CallResult("The sum is 2.")

    run_with_client(server, work)


def test_calls_are_made_at_once_in_one_session(server: LocalServer) -> None:
    async def work(tools: McpClient, one: McpServer) -> list[CallResult]:
        await tools.list_tools(one)
        return await asyncio.gather(
            *(tools.call_tool(one, "add", {"a": n, "b": n}, 1000) for n in range(20))
        )

    before = len(server.log.requests)
    made = run_with_client(server, work)
    assert [one.output for one in made] == [f"The sum is {2 * n}." for n in range(20)]
    ids = {one.get("mcp-session-id") for one in server.log.requests[before:]} - {None}
    assert len(ids) <= 1


def test_a_call_has_its_time(server: LocalServer) -> None:
    server.log.slow_cancelled.clear()
    outcome = call_tool(server, "slow", seconds=0.5)
    assert outcome == CallResult(error="The tool did not answer within 0.5 seconds.")
    assert was_cancelled(server)  # that nobody waits any more


def was_cancelled(server: LocalServer) -> bool:
    """Whether a server was told to stop, if it is one that listens while it works."""
    return server.kind == "json" or server.log.slow_cancelled.wait(10)


def test_whoever_gives_up_leaves_nothing_behind(server: LocalServer) -> None:
    """A turn that is cancelled cancels its call, and its connection goes at once."""
    seen = server.log
    seen.slow_started.clear()
    seen.slow_cancelled.clear()

    async def work(tools: McpClient, one: McpServer) -> float:
        call = asyncio.create_task(tools.call_tool(one, "slow", {}, 1000))
        assert await asyncio.to_thread(seen.slow_started.wait, 10)
        began = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await tools.aclose()
        return time.monotonic() - began

    assert run_with_client(server, work) < 5
    assert was_cancelled(server)


def test_a_toolbox_is_closed_without_waiting() -> None:
    async def work(tools: McpClient, one: McpServer) -> None:
        waiting = asyncio.create_task(tools.list_tools(one))
        assert await asyncio.to_thread(asked.wait, 10)
        tools.close()
        with pytest.raises(ToolsUnavailable):
            await waiting

    asked = threading.Event()

    async def never(_: Any) -> None:
        asked.set()
        await asyncio.sleep(3600)

    with serve_app(make_raw_app(never)) as server:
        run_with_client(server, work)


def test_headers_are_sent_and_ours_are_kept(server: LocalServer) -> None:
    async def work(tools: McpClient, one: McpServer) -> None:
        with_key = msgspec.structs.replace(one, headers={"Authorization": "Bearer s3cret"})
        await tools.list_tools(with_key)
        assert "s3cret" not in repr(with_key)

    before = len(server.log.requests)
    run_with_client(server, work)
    sent = server.log.requests[before:]
    assert sent
    assert all(one["authorization"] == "Bearer s3cret" for one in sent)
    assert all(one["user-agent"] == "dragoman" for one in sent)
    for name in ("Host", "content-length", "Mcp-Session-Id", "Transfer-Encoding"):
        headers = {name: "evil"}
        said = get_list_error(server, headers=headers)
        assert said == f"The header `{name}` cannot be given."


def get_list_error(server: LocalServer, seconds: float = 20.0, **fields: Any) -> str:
    """Why a server's tools cannot be listed."""

    async def work(tools: McpClient, one: McpServer) -> str:
        with pytest.raises(ToolsUnavailable) as error:
            await tools.list_tools(msgspec.structs.replace(one, **fields))
        return str(error.value)

    return str(run_with_client(server, work, seconds=seconds))


def test_a_server_that_forgot_the_session_is_greeted_again() -> None:
    sessions: list[str] = []

    def answer(message: dict[str, Any]) -> Any:
        if message["method"] == "initialize":
            sessions.append("another")
            return answer_initialize(message)
        if message["method"] != "tools/call":
            return {"code": -32601, "message": "Method not found"}
        if len(sessions) == 1:
            return b""
        return {"content": [{"type": "text", "text": "here"}]}

    lost = {"content-type": "text/plain"}
    app = make_raw_app(answer, status=404, headers=lost, session="abc")
    with serve_app(app) as server:
        assert call_tool(server, "any") == CallResult("here")
    assert len(sessions) == 2


# What does not


def test_nobody_is_there() -> None:
    with serve_tools() as server:
        pass
    assert get_list_error(server) == "The server could not be reached."
    assert call_tool(server, "add") == CallResult(error="The server could not be reached.")


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (401, {"content-type": "text/plain"}, b"no", "wants an authorization"),
        (403, {}, b"{}", "wants an authorization"),
        (404, {"content-type": "text/html"}, b"<html>", "answered with HTTP 404"),
        (500, {}, b'{"detail": "secret"}', "answered with HTTP 500"),
        (503, {"content-type": "text/plain"}, b"Traceback", "answered with HTTP 503"),
        (200, {"content-type": "text/html"}, b"<html>", "Unexpected content type"),
        (200, {}, b"not json", "could not be read"),
        (200, {}, b"[" * 100_000, "could not be read"),
        (200, {}, b'{"jsonrpc": "2.0"}', "could not be read"),
        (200, {"content-type": "text/event-stream"}, b"data: {}\n\n", "could not be read"),
        (200, {"content-type": "text/event-stream"}, b"", "broke off"),
        (200, {"content-encoding": "gzip"}, b"\x1f\x8b", "compressed"),
        (202, {}, b"", "202"),
    ],
)
def test_servers_that_do_not_speak_it(
    status: int, headers: dict[str, str], body: bytes, said: str
) -> None:
    app = make_raw_app(lambda _: body, status=status, headers=headers)
    with serve_app(app) as server:
        told = get_list_error(server, seconds=10)
    assert said in told
    for secret in ("Traceback", "secret", "127.0.0.1", "Error", "validation"):
        assert secret not in told


def make_listing_app(tools: Any, **more: Any) -> Any:
    """A server that lists what it is told to."""

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
    ("name", "schema", "told"),
    [
        ("plain", make_deep_schema(3), make_deep_schema(3)),
        ("deep", make_deep_schema(40), {"type": "object"}),
        ("large", {"type": "object", "description": "x" * 70_000}, {"type": "object"}),
        ("odd", {"type": "object", "$ref": "http://127.0.0.1/"}, None),
        ("", {"type": "object"}, ()),
        ("a\nb", {"type": "object"}, ()),
        ("n" * 500, {"type": "object"}, ()),
    ],
)
def test_what_a_stranger_offers_has_limits(name: str, schema: Any, told: Any) -> None:
    tool = {"name": name, "inputSchema": schema, "description": "d" * 50_000}
    fine = {"name": "fine", "inputSchema": {"type": "object"}}
    with serve_app(make_listing_app([tool, fine])) as server:
        found = list_tools(server)
    assert "fine" in found
    if told == ():
        assert found.keys() == {"fine"}
    else:
        assert found[name].input_schema == (told or schema)
        assert len(found[name].description or "") < 10_000


def test_lists_have_pages() -> None:
    def page(message: dict[str, Any]) -> Any:
        number = int((message.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(number + 1)} if number < 4 else {}
        return {"tools": [{"name": f"t{number}", "inputSchema": {"type": "object"}}], **more}

    with serve_app(make_listing_app(page)) as server:
        assert list_tools(server).keys() == {f"t{number}" for number in range(5)}


@pytest.mark.parametrize(
    ("size", "said"), [(0, "has no end"), (300, "offers more than 1,024 tools")]
)
def test_lists_have_an_end(size: int, said: str) -> None:
    pages = iter(range(1000))

    def page(message: dict[str, Any]) -> Any:
        number = next(pages)
        names = [f"t{number}-{at}" for at in range(size)]
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        return {"tools": tools, "nextCursor": "on"}

    with serve_app(make_listing_app(page)) as server:
        assert said in get_list_error(server)


def test_a_list_has_a_size() -> None:
    schema = {"type": "object", "description": "x" * 60_000}
    pages = iter(range(1000))

    def page(message: dict[str, Any]) -> Any:
        tools = [{"name": f"t{next(pages)}", "inputSchema": schema} for _ in range(20)]
        return {"tools": tools, "nextCursor": "on"}

    with serve_app(make_listing_app(page)) as server:
        assert get_list_error(server) == "The server's list of tools is too long."


def test_a_result_is_not_held_against_a_stranger_s_schema() -> None:
    """A pattern can take for ever to fail; nobody asked us to look."""
    schema = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema}
    result = {"content": [], "structuredContent": {"a": "a" * 40 + "b"}}

    def answer(message: dict[str, Any]) -> Any:
        kinds: dict[str, Any] = {"tools/list": {"tools": [tool]}, "tools/call": result}
        return kinds.get(message["method"]) or answer_initialize(message)

    async def work(tools: McpClient, one: McpServer) -> CallResult:
        await tools.list_tools(one)
        return await tools.call_tool(one, "t", {}, 1000)

    with serve_app(make_raw_app(answer)) as server:
        assert json.loads(run_with_client(server, work).output) == result["structuredContent"]


def test_a_stranger_writes_nothing_into_our_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serve_app(make_raw_app(lambda _: b"not json\ninjected")) as server,
        caplog.at_level(logging.DEBUG),
    ):
        caplog.handler.setLevel(logging.WARNING)
        get_list_error(server)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


# The operator's servers


def test_an_operator_may_name_any_server(server: LocalServer) -> None:
    async def work() -> list[ListedTool]:
        tools = McpClient(UrlGuard(), 20.0)
        try:
            return await tools.list_tools(parse_servers([f"test={server.url}"])["test"])
        finally:
            await tools.aclose()

    assert asyncio.run(work())


@pytest.mark.parametrize("said", ["a", "=http://a", "a=", "a=b", "a=ftp://b", "a=file:///etc"])
def test_a_server_of_the_operator_is_a_label_and_an_address(said: str) -> None:
    with pytest.raises(ValueError, match="LABEL=URL"):
        parse_servers([said])
