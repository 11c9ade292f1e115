"""Remote tools that fail, hang or must not be reached, with the real client."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from tests.responses.remote_tools import (
    SCRIPT,
    THINKER,
    create,
    list_types,
    make_client,
    make_mcp_tool,
    stream,
    write_call,
)
from tests.support.mcp_servers import (
    LocalServer,
    answer_initialize,
    make_raw_app,
    serve_app,
    serve_tools,
)
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow


def test_an_unreachable_server_does_not_fail_the_response(
    server: RunningServer, client: OpenAI
) -> None:
    with serve_tools() as stopped:
        host = stopped.host
    assert host not in server.app.settings.mcp_hosts
    tool = {"type": "mcp", "server_label": "gone", "server_url": "https://nothing.invalid/mcp"}
    response = create(client, "Hi", tool)
    assert list_types(response) == ["mcp_list_tools", "message"]
    tool_list = response.output[0]
    assert tool_list.type == "mcp_list_tools"
    assert tool_list.tools == []
    assert "not a public host" in str(tool_list.error)
    assert response.output_text == "Hello there!"
    streamed = stream(server, "Hi", tool)
    assert streamed["output"][0]["error"]
    continued = create(client, "Hi", tool, previous_response_id=response.id)
    assert list_types(continued) == ["mcp_list_tools", "message"]  # it is listed again


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"])
def test_a_request_cannot_reach_this_machine(
    server: RunningServer, client: OpenAI, host: str
) -> None:
    with serve_tools() as inside:
        url = inside.url.replace("127.0.0.1", host)
        tool = {"type": "mcp", "server_label": "calc", "server_url": url}
        response = create(client, "Hi", tool)
        assert inside.log.requests == []
    assert response.output[0].type == "mcp_list_tools"
    assert response.output[0].error


def test_configured_servers_are_used_by_label(client: OpenAI, tools: LocalServer) -> None:
    tool: Any = {"type": "mcp", "server_label": "calc", "require_approval": "never"}
    tool["headers"] = {"x-tenant": "anna"}
    before = len(tools.log.requests)
    assert create(client, "Add them.", tool).output_text == "It is five."
    assert all(request["x-tenant"] == "anna" for request in tools.log.requests[before:])
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, "Hi", tool | {"server_label": "nobody"})
    assert "nobody" in caught.value.message


def test_credentials_are_sent_to_the_server_and_not_stored(
    client: OpenAI, tools: LocalServer
) -> None:
    before = len(tools.log.requests)
    response = create(
        client, "Add them.", make_mcp_tool(tools, authorization="s3cret", headers={"x-key": "k3y"})
    )
    requests = tools.log.requests[before:]
    assert all(request["authorization"] == "Bearer s3cret" for request in requests)
    assert all(request["x-key"] == "k3y" for request in requests)
    for shown in (response, client.responses.retrieve(response.id)):
        assert "s3cret" not in shown.to_json()
        assert "k3y" not in shown.to_json()


def test_too_many_servers_are_rejected(client: OpenAI, tools: LocalServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, "Hi", *(make_mcp_tool(tools, f"s{number}") for number in range(40)))
    assert caught.value.param == "tools"


SCHEMAS: list[Any] = [
    ({"type": "object", "properties": {"n": {"$ref": "http://127.0.0.1:1/x.json"}}}, True),
    ({"type": "object", "properties": {"n": {"type": "no such type"}}}, True),
    ({"type": "object", "properties": {"n": {"pattern": "(?<=a)b(?!c)\\1"}}}, False),
    ({"type": "object", "properties": {"n": {"$ref": "#/nowhere"}}}, True),
    ({"type": "object", "not": {}, "if": {"const": 1}, "then": False, "$dynamicRef": "#x"}, True),
    ({"type": "object"}, False),
]


@pytest.mark.parametrize(("schema", "unusable"), SCHEMAS, ids=range(len(SCHEMAS)))
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_schema_that_cannot_be_used_is_dropped(schema: Any, unusable: bool, choice: Any) -> None:
    def answer(message: dict[str, Any]) -> Any:
        tools = [{"name": "take", "inputSchema": schema}]
        result = {"content": [{"type": "text", "text": "rain"}]}
        known: dict[str, Any] = {"tools/list": {"tools": tools}, "tools/call": result}
        return known.get(message["method"]) or answer_initialize(message)

    with serve_app(make_raw_app(answer)) as remote:
        engine = ScriptedEngine(SCRIPT, tokens=True, grammars=True)
        options: Any = {"chat_template": THINKER, "mcp_hosts": [remote.host]}
        with serve_scripted(engine, **options) as server, make_client(server) as client:
            raw = client.responses.with_raw_response.create(
                model="scripted", input="Take", tools=[make_mcp_tool(remote)], tool_choice=choice
            )
    assert raw.parse().output_text == "It rains."
    warning = "The schema of the remote tool `calc__take` is not used."
    assert (warning in raw.headers.get("x-dragoman-warning", "")) == unusable


def test_disconnecting_cancels_the_call(server: RunningServer, tools: LocalServer) -> None:
    log = tools.log
    log.slow_started.clear()
    log.slow_cancelled.clear()
    body = {"model": "scripted", "input": "Slowly", "tools": [make_mcp_tool(tools)], "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=30):
        assert log.slow_started.wait(20)
    assert log.slow_cancelled.wait(20)


@measures_time
def test_cancelling_a_background_response_cancels_its_call(
    client: OpenAI, tools: LocalServer
) -> None:
    log = tools.log
    log.slow_started.clear()
    log.slow_cancelled.clear()
    response = create(client, "Slowly", make_mcp_tool(tools), background=True)
    assert log.slow_started.wait(20)
    started = time.monotonic()
    cancelled = client.responses.cancel(response.id)
    assert time.monotonic() - started < 5
    assert cancelled.status == "cancelled"
    assert log.slow_cancelled.wait(20)


def test_an_output_leaves_room_in_the_context(tools: LocalServer) -> None:
    """However long the output of a tool is, and whatever the operator allows."""
    script = [Reply(write_call("calc__big", size=100_000), when="Say"), Reply("A lot.")]
    engine = ScriptedEngine(script, tokens=True, context=6000)
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp_output": 1_000_000}
    options["chat_template"] = THINKER
    with serve_scripted(engine, **options) as server, make_client(server) as client:
        response = create(
            client, "Say a lot.", make_mcp_tool(tools, allowed_tools=["big"]), truncation="auto"
        )
    called = response.output[1]
    assert called.type == "mcp_call"
    assert (called.output or "").endswith("3,000 of 100,000 characters are shown.]")


def test_the_model_gets_the_timeout_of_a_tool(tools: LocalServer) -> None:
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp_timeout": 0.5}
    options["chat_template"] = THINKER
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with serve_scripted(engine, **options) as server, make_client(server) as client:
        assert create(client, "Slowly", make_mcp_tool(tools)).output_text == "Too slow."


def test_the_engine_serves_others_while_a_tool_is_called() -> None:
    script = [Reply("One, two", when="Hang", hang_at=1), *SCRIPT]
    engine = ScriptedEngine(script, tokens=True, slots=1)
    with serve_tools() as tools:
        options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp_timeout": 1.0, "queue": 0}
        with (
            serve_scripted(engine, chat_template=THINKER, **options) as server,
            make_client(server) as client,
            ThreadPoolExecutor() as pool,
        ):
            slow_response = pool.submit(create, client, "Slowly", make_mcp_tool(tools))
            assert tools.log.slow_started.wait(20)
            with httpx.stream(
                "POST", f"{server.url}/v1/chat/completions", json=make_chat("Hang", stream=True)
            ) as other:
                assert other.status_code == 200
                gate = server.get_gate()
                poll_until(
                    lambda: gate.waiting == 1
                )  # a response that has begun waits even if the queue is full
            assert slow_response.result(30).output_text == "Too slow."
