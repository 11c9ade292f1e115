"""Servers with scripted models that write reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from dragoman.testing import ScriptedEngine
from tests.support.scripted_chats import (
    CHUNKINGS,
    THINKER,
    make_replies,
)
from tests.support.serving import RunningServer, serve_scripted


@pytest.fixture(scope="module", params=CHUNKINGS)
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    replies = make_replies(**CHUNKINGS[request.param])
    engine = ScriptedEngine(replies, tokens=request.param == "bytes")
    with serve_scripted(engine, chat_template=THINKER) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as running:
        yield running


@pytest.fixture(scope="module")
def bytes_engine() -> ScriptedEngine:
    return ScriptedEngine(make_replies(chunks="bytes"), tokens=True)


@pytest.fixture(scope="module")
def byte_server(bytes_engine: ScriptedEngine) -> Iterator[RunningServer]:
    """Serve a model whose every token is one byte, so that counts are lengths."""
    with serve_scripted(bytes_engine, chat_template=THINKER) as running:
        yield running
