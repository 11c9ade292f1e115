"""A scripted model that calls remote tools, and requests with such tools."""

from __future__ import annotations

import json
from typing import Any

import httpx
from openai import OpenAI
from openai.types.responses import Response

from dragoman.testing import Reply
from tests.support.event_order import check_responses
from tests.support.mcp_servers import LocalServer
from tests.support.paths import TEMPLATES
from tests.support.serving import RunningServer

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
    return len(list_job_ids(server))


def list_job_ids(server: RunningServer) -> list[str]:
    engine: Any = next(iter(server.app.runtime.services.models.list_loaded())).engine
    return [job.id for job in engine.jobs]


def remove_ids(value: Any) -> Any:
    """Remove what differs from one response to the next."""
    ignored = {"id", "created_at", "completed_at", "background", "approval_request_id", "call_id"}
    if isinstance(value, dict):
        return {name: remove_ids(inner) for name, inner in value.items() if name not in ignored}
    return [remove_ids(inner) for inner in value] if isinstance(value, list) else value
