"""The reference server of the protocol, with every feature, used in rounds of calls."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from dragoman.testing import Reply, ScriptedEngine
from tests.remote.installed import EVERYTHING, NODE
from tests.support.event_order import check_responses
from tests.support.serving import RunningServer, serve_scripted

TEMPLATE = Path(__file__).parent.parent / "templates" / "thinker.jinja"


def write_call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": f"every__{name}", "arguments": arguments})
    return f"<think>\nI call.\n</think>\n\n<tool_call>\n{body}\n</tool_call>"


# one conversation: the model answers each result with the next call
SCRIPT = [
    Reply(write_call("get-sum", a=19, b=23), when="Begin"),
    Reply(write_call("echo", message="It is 42."), when="The sum of"),
    Reply(write_call("get-tiny-image"), when="Echo: It is 42."),
    Reply(write_call("get-structured-content", location="Chicago"), when="image/png"),
    Reply(
        write_call("trigger-long-running-operation", duration=1, steps=2)
        + write_call("get-resource-reference", resourceType="Text", resourceId=1),
        when="temperature",
    ),
    Reply(write_call("get-sum", a="many"), when="resource"),
    Reply("The sum is 42; the rest was seen.", when="Invalid arguments"),
    Reply("Hello."),
]


@pytest.fixture(scope="module", params=["streamableHttp", "sse"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("everything") / "log").open("wb")
    server = subprocess.Popen(
        [NODE, EVERYTHING, request.param],
        env={"PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        _wait(port)
        path = "mcp" if request.param == "streamableHttp" else "sse"
        yield f"http://127.0.0.1:{port}/{path}"
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def _wait(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def server(url: str) -> Iterator[RunningServer]:
    engine = ScriptedEngine(SCRIPT, tokens=True)
    with serve_scripted(
        engine, chat_template=TEMPLATE, mcp=[f"every={url}"], mcp_timeout=60.0
    ) as running:
        yield running


def test_every_tool_is_called_in_turn(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=120)
    tool: Any = {"type": "mcp", "server_label": "every", "require_approval": "never"}
    response = client.responses.create(model="scripted", input="Begin", tools=[tool])
    calls = [item for item in response.output if item.type == "mcp_call"]
    outputs = {item.name: item.output or "" for item in calls if item.error is None}
    assert response.output_text.strip() == "The sum is 42; the rest was seen.", response.to_json()
    assert outputs["get-sum"] == "The sum of 19 and 23 is 42."
    assert outputs["echo"] == "Echo: It is 42."
    assert "it cannot be shown here" in outputs["get-tiny-image"]
    assert json.loads(outputs["get-structured-content"])["temperature"]
    assert "Long running operation completed" in outputs["trigger-long-running-operation"]
    assert "Resource 1" in outputs["get-resource-reference"]
    assert [item.name for item in calls if item.error is not None] == ["get-sum"]
    assert len(calls) == 7
    streamed = httpx.post(
        f"{server.url}/v1/responses",
        json={"model": "scripted", "input": "Begin", "tools": [tool], "stream": True},
        timeout=120,
    )
    blocks = [block for block in streamed.text.split("\n\n") if block and block[0] != ":"]
    resource = check_responses([f"{block}\n\n".encode() for block in blocks])
    assert [item["type"] for item in resource["output"]] == [item.type for item in response.output]
