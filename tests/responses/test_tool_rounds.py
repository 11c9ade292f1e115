"""Remote tools in responses: listing, approval, calls and continuation, with the real client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from dragoman.testing import Reply, ScriptedEngine
from tests.support.event_order import check_responses
from tests.support.mcp_servers import (
    LocalServer,
    answer_initialize,
    make_raw_app,
    serve_app,
    serve_tools,
)
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

THINKER = TEMPLATES / "thinker.jinja"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def write_call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


SCRIPT = [
    Reply("It is five.", when="The sum is 5."),
    Reply(write_call("calc__add", a=2, b=3), when="Add"),
    Reply("It is on fire.", when="Error executing tool fail"),
    Reply(write_call("calc__fail"), when="Fail"),
    Reply(write_call("calc__look", at="home"), when="Look"),
    Reply("Nothing there.", when="nothing at home"),
    Reply("All right, I do not.", when="did not approve"),
    Reply(
        write_call("calc__add", a=1, b=1) + "\n" + write_call("weather", city="Rome"), when="Both"
    ),
    Reply(
        write_call("weather", city="Rome") + "\n" + write_call("calc__add", a=1, b=1),
        when="Crossed",
    ),
    Reply(
        write_call("calc__add", a=1, b=1) + "\n" + write_call("other__look", at="sea"), when="Two"
    ),
    Reply(
        write_call("calc__add", a=1, b=1) + "\n" + write_call("calc__look", at="hill"), when="Mixed"
    ),
    Reply("Two and the sea.", when="nothing at sea"),
    Reply("It rains.", when="rain"),
    Reply("It rains.", when="The sum is 2."),  # results are in the order of their calls
    Reply("Enough.", when="No more remote calls"),
    Reply(write_call("calc__look", at="on"), when="For ever"),
    Reply(write_call("calc__look", at="on"), when="nothing at on"),
    Reply(write_call("calc__slow"), when="Slowly"),
    Reply("Too slow.", when="did not answer"),
    Reply(write_call("calc__take", n=1), when="Take"),
    Reply("Hello there!"),
]


@pytest.fixture(scope="module")
def tools() -> Iterator[LocalServer]:
    with serve_tools() as local_server:
        yield local_server


@pytest.fixture(scope="module")
def server(tools: LocalServer) -> Iterator[RunningServer]:
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "mcp": [f"calc={tools.url}"]}
    options |= {"mcp_rounds": 3, "mcp_timeout": 20.0, "chat_template": THINKER}
    with serve_scripted(ScriptedEngine(SCRIPT, tokens=True, grammars=True), **options) as running:
        yield running


@pytest.fixture
def client(server: RunningServer, tools: LocalServer) -> Iterator[OpenAI]:
    tools.log.calls.clear()
    with make_client(server) as openai_client:
        yield openai_client


def make_client(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=30)


def make_mcp_tool(tools: LocalServer, label: str = "calc", **fields: Any) -> Any:
    tool = {"type": "mcp", "server_label": label, "server_url": tools.url}
    return tool | {"require_approval": "never"} | fields


def create(client: OpenAI, input_items: Any, *tools: Any, **fields: Any) -> Response:
    response = client.responses.create(
        model="scripted", input=input_items, tools=list(tools), **fields
    )
    assert isinstance(response, Response)
    return response


def stream(server: RunningServer, input_items: Any, *tools: Any, **fields: Any) -> Any:
    """Check the events of a stream, and return the resource that it ends with."""
    body = {"model": "scripted", "input": input_items, "tools": tools, "stream": True, **fields}
    reply = httpx.post(f"{server.url}/v1/responses", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    blocks = [block for block in reply.text.split("\n\n") if block and not block.startswith(":")]
    return check_responses([f"{block}\n\n".encode() for block in blocks])


def list_types(response: Response) -> list[str]:
    return [item.type for item in response.output]


def get_last_prompt(server: RunningServer) -> str:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    pieces = engine.tokenizer.pieces
    return b"".join(pieces[token] for token in engine.jobs[-1].prompt).decode()


def count_jobs(server: RunningServer) -> int:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    return len(engine.jobs)


def remove_ids(value: Any) -> Any:
    """Remove what differs from one response to the next."""
    ignored = {"id", "created_at", "completed_at", "background", "approval_request_id", "call_id"}
    if isinstance(value, dict):
        return {name: remove_ids(inner) for name, inner in value.items() if name not in ignored}
    return [remove_ids(inner) for inner in value] if isinstance(value, list) else value


# rounds of calls


def test_a_tool_is_listed_and_called_and_the_model_continues(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    before = count_jobs(server) if list(server.app.runtime.services.models.list_loaded()) else 0
    response = create(client, "Add two and three.", make_mcp_tool(tools))
    assert list_types(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert response.output_text == "It is five."
    assert response.status == "completed"
    tool_list, called, _ = response.output
    assert tool_list.type == "mcp_list_tools"
    assert called.type == "mcp_call"
    assert {tool.name for tool in tool_list.tools} >= {"add", "look", "fail"}
    assert (called.name, called.server_label) == ("add", "calc")
    assert json.loads(called.arguments) == {"a": 2, "b": 3}
    assert (called.output, called.error, called.status) == ("The sum is 5.", None, "completed")
    assert tools.log.calls == ["add 2 3"]
    assert count_jobs(server) == before + 2
    assert client.responses.retrieve(response.id).to_dict() == response.to_dict()


def test_usage_is_the_sum_of_all_rounds(client: OpenAI, tools: LocalServer) -> None:
    one_round = create(client, "Hi").usage
    two_rounds = create(client, "Add two and three.", make_mcp_tool(tools)).usage
    assert one_round is not None
    assert two_rounds is not None
    written = len(write_call("calc__add", a=2, b=3)) + len("It is five.")
    overhead = one_round.output_tokens - len("Hello there!")
    assert two_rounds.output_tokens == written + 2 * overhead
    assert two_rounds.total_tokens == two_rounds.input_tokens + two_rounds.output_tokens


@pytest.mark.parametrize("text", ["Add them.", "Fail!", "Look home.", "Both", "Two", "For ever"])
def test_a_stream_ends_with_the_same_resource(
    server: RunningServer, client: OpenAI, tools: LocalServer, text: str
) -> None:
    requested = make_mcp_tool(tools), make_mcp_tool(tools, "other", allowed_tools=["look"]), WEATHER
    streamed = stream(server, text, *requested)
    whole = create(client, text, *requested)
    assert remove_ids(streamed) == remove_ids(json.loads(whole.to_json()))


def test_background_responses_call_tools(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    response = create(client, "Add them.", make_mcp_tool(tools), background=True)
    for _ in client.responses.retrieve(response.id, stream=True):
        pass
    stored = client.responses.retrieve(response.id)
    assert list_types(stored) == ["mcp_list_tools", "mcp_call", "message"]
    assert stored.output_text == "It is five."
    streamed = stream(server, "Add them.", make_mcp_tool(tools), background=True)
    assert remove_ids(streamed) == remove_ids(json.loads(stored.to_json()))


def test_the_model_gets_the_error_of_a_tool(client: OpenAI, tools: LocalServer) -> None:
    response = create(client, "Fail!", make_mcp_tool(tools))
    called = response.output[1]
    assert called.type == "mcp_call"
    assert called.status == "failed"
    assert called.output is None
    assert "Error executing tool fail" in str(called.error)
    assert response.output_text == "It is on fire."
    assert response.status == "completed"


def test_several_servers_can_be_used(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    with serve_tools() as other:
        second = make_mcp_tool(other, "other", server_url=tools.url)
        response = create(client, "Two", make_mcp_tool(tools), second)
    assert list_types(response) == ["mcp_list_tools"] * 2 + ["mcp_call"] * 2 + ["message"]
    assert sorted(tools.log.calls) == ["add 1 1", "look sea"]
    assert response.output_text == "Two and the sea."


@pytest.mark.parametrize("text", ["Both", "Crossed"])
def test_a_round_can_call_remote_tools_and_the_clients(
    server: RunningServer, client: OpenAI, tools: LocalServer, text: str
) -> None:
    """The server makes the remote call; the response ends with the client's call."""
    first = create(client, text, make_mcp_tool(tools), WEATHER)
    assert sorted(list_types(first)) == ["function_call", "mcp_call", "mcp_list_tools"]
    assert tools.log.calls == ["add 1 1"]
    (own,) = [item for item in first.output if item.type == "function_call"]
    result: Any = {"type": "function_call_output", "call_id": own.call_id, "output": "rain"}
    second = create(client, [result], make_mcp_tool(tools), WEATHER, previous_response_id=first.id)
    assert second.output_text == "It rains."
    assert list_types(second) == ["message"]  # the list is known
    assert "The sum is 2." in get_last_prompt(server)
    assert tools.log.calls == ["add 1 1"]


def test_tools_are_listed_once_in_a_conversation(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    first = create(client, "Hi", make_mcp_tool(tools))
    assert list_types(first) == ["mcp_list_tools", "message"]
    before = len(tools.log.requests)
    second = create(client, "Hi again", make_mcp_tool(tools), previous_response_id=first.id)
    assert list_types(second) == ["message"]
    items = [item.to_dict() for item in first.output]
    history: list[Any] = [{"role": "user", "content": "Hi"}, *items]
    third = create(
        client, [*history, {"role": "user", "content": "Hi again"}], make_mcp_tool(tools)
    )
    assert list_types(third) == ["message"]
    assert len(tools.log.requests) == before
    assert "calc__add" in get_last_prompt(server)
    called = create(client, "Add them.", make_mcp_tool(tools), previous_response_id=second.id)
    assert called.output_text == "It is five."


# limits


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (["add"], {"add"}),
        (["add", "nothing"], {"add"}),
        ([], set()),
        ({"tool_names": ["look", "add"]}, {"look", "add"}),
        ({"read_only": True}, {"look"}),
        ({"read_only": True, "tool_names": ["add"]}, set()),
    ],
)
def test_the_prompt_has_the_allowed_tools(
    server: RunningServer, client: OpenAI, tools: LocalServer, allowed: Any, names: set[str]
) -> None:
    create(client, "Hi", make_mcp_tool(tools, allowed_tools=allowed))
    prompt = get_last_prompt(server)
    known = {name for name in ("add", "look", "fail", "slow") if f"calc__{name}" in prompt}
    assert known == names


def test_max_tool_calls_is_honoured(client: OpenAI, tools: LocalServer) -> None:
    response = create(client, "For ever", make_mcp_tool(tools), max_tool_calls=2)
    assert list_types(response).count("mcp_call") == 2
    assert response.status == "completed"
    assert len(tools.log.calls) == 2


def test_the_operators_limit_of_rounds_is_honoured(client: OpenAI, tools: LocalServer) -> None:
    response = create(client, "For ever", make_mcp_tool(tools))
    calls = [item for item in response.output if item.type == "mcp_call"]
    assert [item.status for item in calls] == ["completed"] * 3 + ["failed"]
    assert response.output_text == "Enough."
    assert len(tools.log.calls) == 3


def test_max_output_tokens_applies_to_all_rounds_together(
    client: OpenAI, tools: LocalServer
) -> None:
    call_length = len(write_call("calc__add", a=2, b=3))
    response = create(client, "Add them.", make_mcp_tool(tools), max_output_tokens=call_length + 6)
    assert response.status == "incomplete"
    assert list_types(response) == ["mcp_list_tools", "mcp_call", "message"]
    cut = create(client, "Add them.", make_mcp_tool(tools), max_output_tokens=call_length - 20)
    assert cut.status == "incomplete"
    assert tools.log.calls == ["add 2 3"]  # a call that was cut off is not response


@pytest.mark.parametrize("choice", ["required", {"type": "mcp", "server_label": "calc"}, "auto"])
def test_tool_choice_applies_to_the_first_round(
    client: OpenAI, tools: LocalServer, choice: Any
) -> None:
    response = create(client, "Add them.", make_mcp_tool(tools), tool_choice=choice)
    assert response.output_text == "It is five."


# approval


def make_approval(response: Response, approve: bool, **fields: Any) -> Any:
    (request,) = [item for item in response.output if item.type == "mcp_approval_request"]
    item = {"type": "mcp_approval_response", "approval_request_id": request.id}
    return item | {"approve": approve} | fields


@pytest.mark.parametrize("by", ["previous", "conversation", "items"])
def test_a_call_waits_for_approval(
    server: RunningServer, client: OpenAI, tools: LocalServer, by: str
) -> None:
    tool = make_mcp_tool(tools, require_approval="always")
    question: Any = {"role": "user", "content": "Add them."}
    fields = {"conversation": client.conversations.create().id} if by == "conversation" else {}
    first = create(client, [question], tool, **fields)
    assert list_types(first) == ["mcp_list_tools", "mcp_approval_request"]
    assert tools.log.calls == []
    request = first.output[1]
    assert request.type == "mcp_approval_request"
    assert (request.name, request.server_label) == ("add", "calc")
    assert json.loads(request.arguments) == {"a": 2, "b": 3}
    items = [make_approval(first, True)]
    if by == "items":
        items = [question, *(item.to_dict() for item in first.output), *items]
    if by == "previous":
        fields["previous_response_id"] = first.id
    second = create(client, items, tool, **fields)
    assert list_types(second) == ["mcp_call", "message"]
    called = second.output[0]
    assert called.type == "mcp_call"
    assert called.approval_request_id == request.id
    assert second.output_text == "It is five."
    assert tools.log.calls == ["add 2 3"]


def test_an_approved_call_is_made_once(client: OpenAI, tools: LocalServer) -> None:
    """Sending the whole history again does not repeat it."""
    tool = make_mcp_tool(tools, require_approval="always")
    question: Any = {"role": "user", "content": "Add them."}
    first = create(client, [question], tool, store=False)
    items = [question, *(item.to_dict() for item in first.output), make_approval(first, True)]
    second = create(client, items, tool, store=False)
    items += [*(item.to_dict() for item in second.output), {"role": "user", "content": "Thanks"}]
    third = create(client, items, tool, store=False)
    assert third.output_text == "Hello there!"
    assert tools.log.calls == ["add 2 3"]


def test_a_denied_call_is_not_made(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    tool = make_mcp_tool(tools, require_approval="always")
    first = create(client, "Add them.", tool)
    denied = make_approval(first, False, reason="It is late.")
    second = create(client, [denied], tool, previous_response_id=first.id)
    assert second.output_text == "All right, I do not."
    assert "It is late." in get_last_prompt(server)
    assert tools.log.calls == []


def test_a_streamed_call_can_be_approved(
    server: RunningServer, client: OpenAI, tools: LocalServer
) -> None:
    tool = make_mcp_tool(tools, require_approval="always")
    first = stream(server, "Add them.", tool)
    assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    approved = {"type": "mcp_approval_response", "approve": True}
    approved |= {"approval_request_id": first["output"][1]["id"]}
    second = stream(server, [approved], tool, previous_response_id=first["id"])
    assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]


@pytest.mark.parametrize(
    ("require_approval", "needs_approval"),
    [
        (None, True),
        ({"never": {"tool_names": ["add"]}}, False),
        ({"never": {"read_only": True}}, True),
        ({"always": {"tool_names": ["look"]}, "never": {"tool_names": ["add"]}}, False),
        ({"always": {"tool_names": ["add"]}}, True),
    ],
)
def test_require_approval_selects_tools(
    client: OpenAI, tools: LocalServer, require_approval: Any, needs_approval: bool
) -> None:
    response = create(client, "Add them.", make_mcp_tool(tools, require_approval=require_approval))
    assert ("mcp_approval_request" in list_types(response)) == needs_approval
    assert (tools.log.calls == []) == needs_approval


def test_one_call_is_made_and_another_needs_approval(client: OpenAI, tools: LocalServer) -> None:
    tool = make_mcp_tool(tools, require_approval={"never": {"tool_names": ["add"]}})
    response = create(client, "Mixed", tool)
    assert list_types(response) == ["mcp_list_tools", "mcp_call", "mcp_approval_request"]
    assert tools.log.calls == ["add 1 1"]


def test_an_approval_of_an_unknown_request_is_rejected(client: OpenAI, tools: LocalServer) -> None:
    approved = {"type": "mcp_approval_response", "approval_request_id": "mcpr_x", "approve": True}
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, [approved], make_mcp_tool(tools))
    assert caught.value.param == "input[0].approval_request_id"
    first = create(client, "Add them.", make_mcp_tool(tools, require_approval="always"))
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, [make_approval(first, True)], previous_response_id=first.id)
    assert caught.value.param == "tools"


# failures


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
