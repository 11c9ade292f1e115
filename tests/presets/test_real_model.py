"""The default model answers and ends without any sampling field, and presets reach the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.real_model import MODEL, serve
from tests.support.serving import RunningServer

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[RunningServer]:
    with serve(default_model, context=2048) as server:
        yield server


def ask(server: RunningServer, text: str, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize(
    "text", ["What is gravity?", "Write a short poem about the sea.", "Hello!"]
)
def test_answers_end_by_default(server: RunningServer, text: str) -> None:
    assert ask(server, text, seed=1)["finish_reason"] == "stop"


def test_model_list_says_where_the_defaults_come_from(server: RunningServer) -> None:
    [card] = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert card["sampling_source"] == "dragoman"
    assert card["default_sampling"]["temperature"] == 0.7


def test_forced_sampling_reaches_the_engine(default_model: Path) -> None:
    """Greedy answers are equal, whatever a client asks for; the stop string cuts them."""
    options = {"sampling": {"temperature": {"override": 0, "force": True}}, "stop": ["."]}
    with serve(default_model, context=512, slots=1, **options) as server:
        first, second = (
            ask(server, "Tell me about the sea.", temperature=2, seed=seed, max_tokens=40)
            for seed in (1, 2)
        )
    assert first["message"]["content"] == second["message"]["content"]
    assert "." not in first["message"]["content"]
    assert first["stop_reason"] == "."
