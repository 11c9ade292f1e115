"""Pictures in the results of remote tools reach a model that reads pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import ContentBlock, ImageContent, TextContent

from dragoman.testing import Reply, ScriptedEngine
from tests.responses.remote_tools import THINKER, make_mcp_tool, write_call
from tests.support.mcp_servers import LocalServer, serve_app
from tests.support.media_files import make_image, to_base64
from tests.support.serving import RunningServer, serve_scripted

pytestmark = pytest.mark.slow

PNG = make_image(colour="green")
SCRIPT = [
    Reply("I see green.", when="Here it is"),
    Reply(write_call("calc__screenshot"), when="Look"),
    Reply("Hello there!"),
]


@contextmanager
def serve_screenshots(data: bytes) -> Iterator[LocalServer]:
    server = MCPServer("test", log_level="ERROR")

    @server.tool(structured_output=False)
    def screenshot() -> list[ContentBlock]:
        """Take a screenshot."""
        return [
            TextContent(type="text", text="Here it is:"),
            ImageContent(type="image", data=to_base64(data), mime_type="image/png"),
        ]

    with serve_app(server.streamable_http_app()) as local_server:
        yield local_server


@contextmanager
def serve_model(tools: LocalServer, *modalities: str) -> Iterator[tuple[RunningServer, Any]]:
    engine = ScriptedEngine(
        SCRIPT, tokens=True, context=65536, modalities=modalities, markup=("<tool_call>",)
    )
    options: dict[str, Any] = {"mcp_hosts": [tools.host], "chat_template": THINKER.read_text()}
    with serve_scripted(engine, **options) as server:
        yield server, engine


def ask(server: RunningServer, tools: LocalServer, items: Any, **fields: Any) -> Any:
    body = {"model": "scripted", "input": items, "tools": [make_mcp_tool(tools)], **fields}
    response = httpx.post(f"{server.url}/v1/responses", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def find_call(response: Any) -> Any:
    [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
    return call


def test_a_picture_reaches_the_model_now_and_in_later_requests() -> None:
    with serve_screenshots(PNG) as tools, serve_model(tools, "text", "image") as (server, engine):
        response = ask(server, tools, "Look at it.")
        assert find_call(response)["output"] == "Here it is:\n[image]"
        [item] = engine.jobs[-1].media
        assert (item.width, item.height) == (40, 30)
        ask(server, tools, "And now?", previous_response_id=response["id"])
        assert engine.jobs[-1].media == (item,)
        items = [{"role": "user", "content": "Look at it."}, *response["output"]]
        ask(server, tools, [*items, {"role": "user", "content": "And?"}], store=False)
        assert engine.jobs[-1].media == (item,)


@pytest.mark.parametrize(
    ("data", "modalities"), [(PNG, ("text",)), (b"\x89PNG" * 100, ("text", "image"))]
)
def test_a_picture_that_cannot_be_shown_is_described(
    data: bytes, modalities: tuple[str, ...]
) -> None:
    with serve_screenshots(data) as tools, serve_model(tools, *modalities) as (server, engine):
        response = ask(server, tools, "Look at it.")
        call = find_call(response)
        size = f"{len(to_base64(data)) * 3 // 4:,}"
        expected = f"Here it is:\n[image, image/png, {size} bytes; it cannot be shown here]"
        assert call["output"] == expected
        assert "output_media" not in call
        assert not engine.jobs[-1].media
        assert response["status"] == "completed"
