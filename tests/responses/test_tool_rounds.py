"""Remote tools in responses: listing, calls, limits and continuation, with the real client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

from tests.responses.remote_tools import (
    WEATHER,
    count_jobs,
    create,
    get_last_prompt,
    list_job_ids,
    list_types,
    make_mcp_tool,
    remove_ids,
    stream,
    write_call,
)
from tests.support.mcp_servers import LocalServer, serve_tools
from tests.support.serving import RunningServer

pytestmark = pytest.mark.slow


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
    assert list_job_ids(server)[-2:] == [response.id, f"{response.id}-r1"]
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
