"""Ways to get more than the limits of a key allow: none of them works for longer than once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing import ScriptedEngine
from tests.support.hostile_http import ADMIN, HostileServer, serve_hostile

KEY, OTHER = "key-of-anna", "key-of-bert"
LIMIT = 2_000  # tokens per minute
LONG = "word " * 1_500
USER = [{"role": "user", "content": "Hi"}]
# Requests whose answers nobody limits: one of them uses several times the limit
UNLIMITED: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": ("/v1/chat/completions", {"messages": USER, "n": 8}),
    "an answer": ("/v1/chat/completions", {"messages": USER}),
    "a response": ("/v1/responses", {"input": "Hi", "store": False}),
    "a stream": ("/v1/chat/completions", {"messages": USER, "n": 8, "stream": True}),
    "Ollama's texts": ("/api/generate", {"prompt": "Hi", "stream": False}),
    "Ollama's chats": ("/api/chat", {"messages": USER, "stream": False}),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HostileServer]:
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"entries:\n- {{name: anna, key: {KEY}, limits: {{tokens_per_minute: {LIMIT}}}}}\n"
        f"- {{name: bert, key: {OTHER}}}\n"
    )
    engine = ScriptedEngine(LONG, tokens=True, context=20_000, slots=8)
    with serve_hostile(engine, api_key_file=str(file), admin_key=(ADMIN,)) as hostile:
        yield hostile


@pytest.mark.parametrize("case", UNLIMITED)
def test_answers_without_a_limit_are_paid_for(server: HostileServer, case: str) -> None:
    """A request may exceed the limit once; then its owner waits until that is made up for."""
    path, fields = UNLIMITED[case]
    body = {"model": "scripted", **fields}
    assert server.send("POST", path, key=KEY, json=body).status_code == 200
    refused = server.send("POST", path, key=KEY, json=body)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 60, "what it used beyond the limit is forgotten"
    assert server.send("POST", path, key=OTHER, json=body).status_code == 200
