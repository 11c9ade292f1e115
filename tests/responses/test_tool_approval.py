"""Approval of remote calls, with the real client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.responses.remote_tools import create, get_last_prompt, list_types, make_mcp_tool, stream
from tests.support.mcp_servers import LocalServer
from tests.support.serving import RunningServer


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
