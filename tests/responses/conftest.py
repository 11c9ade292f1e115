from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from dragoman.testing import ScriptedEngine
from tests.responses.remote_tools import SCRIPT, THINKER, make_client
from tests.support.mcp_servers import LocalServer, serve_tools
from tests.support.serving import RunningServer, serve_scripted


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
