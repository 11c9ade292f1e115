"""State outlives its server, whether killed, stopped, or one of two on the same database.

Runs on SQLite, and on PostgreSQL if one is available (`make test-postgres`).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.support.event_order import check_responses
from tests.support.state_server import WORDS, ServerProcess
from tests.support.stores import DATABASES, create_database

pytestmark = pytest.mark.slow

TEXTS = {"quick": "Done at once.", "slow": WORDS}


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with create_database(request.param, tmp_path) as url:
        yield url


def start_response(client: OpenAI, text: str) -> str:
    response = client.responses.create(model="scripted", input=text, background=True)
    return str(response.id)


def get_frames(server: ServerProcess, response: str, after: int = -1) -> list[bytes]:
    url = f"{server.url}/v1/responses/{response}?stream=true&starting_after={after}"
    reply = httpx.get(url, timeout=30)
    blocks = [block for block in reply.text.split("\n\n") if block and not block.startswith(":")]
    return [f"{block}\n\n".encode() for block in blocks]


def check_frames(frames: list[bytes], status: str) -> None:
    """The stream of a response that may have been cut off has no gap, and it has an end."""
    events = [json.loads(frame.split(b"\ndata: ")[1]) for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == f"response.{status}"
    if status == "completed":
        check_responses(frames)


def test_acknowledged_responses_survive_a_kill(store: str) -> None:
    with ServerProcess(store) as server:
        client = server.client
        stored = client.responses.create(model="scripted", input="hello")
        names = {start_response(client, text): text for text in ("quick", "slow") * 10}
        before = {name: client.responses.retrieve(name).status for name in names}
        for name in [name for name, text in names.items() if text == "quick"][:5]:
            get_frames(server, name)  # returns when it has ended
            before[name] = client.responses.retrieve(name).status
        server.kill()
    assert "completed" in before.values()
    assert {"queued", "in_progress"} & set(before.values())
    with ServerProcess(store) as server:
        client = server.client
        assert client.responses.retrieve(stored.id).to_dict() == stored.to_dict()
        for name, text in names.items():
            response = client.responses.retrieve(name)
            assert response.status in ("completed", "failed")
            if before[name] == "completed":
                assert response.status == "completed"
            if response.status == "completed":
                assert response.output_text == TEXTS[text]
            else:
                assert response.error is not None
                assert response.error.code == "server_error"
            check_frames(get_frames(server, name), response.status)
        continued = client.responses.create(
            model="scripted", input="and?", previous_response_id=stored.id
        )
        assert continued.status == "completed"
        assert server.stop() == -signal.SIGTERM


def test_stopping_a_server_fails_its_running_responses(store: str) -> None:
    with ServerProcess(store) as server:
        name = start_response(server.client, "hang")
        assert server.stop() == -signal.SIGTERM
    with ServerProcess(store) as server:
        assert server.client.responses.retrieve(name).status == "failed"
        check_responses(get_frames(server, name))


def test_two_servers_share_a_database(store: str) -> None:
    with ServerProcess(store) as first, ServerProcess(store) as other:
        here, there = first.client, other.client
        stored = here.responses.create(model="scripted", input="hello")
        second = there.responses.create(
            model="scripted", input="and?", previous_response_id=stored.id
        )
        assert here.responses.retrieve(second.id).to_dict() == second.to_dict()
        name = start_response(here, "slow")
        frames = get_frames(other, name)  # while the first server runs it
        check_responses(frames)
        assert frames == get_frames(first, name)
        assert json.loads(frames[-1].split(b"\ndata: ")[1])["response"]["status"] == "completed"
        stuck = start_response(here, "hang")
        assert there.responses.cancel(stuck).status == "cancelled"
        assert here.responses.retrieve(stuck).status == "cancelled"
        conversation: Any = here.conversations.create()
        for client in (here, there, here):
            client.responses.create(model="scripted", input="hello", conversation=conversation.id)
        assert len(list(there.conversations.items.list(conversation.id))) == 6


def test_another_server_fails_the_responses_of_a_dead_one(store: str) -> None:
    with ServerProcess(store) as first, ServerProcess(store) as other:
        name = start_response(first.client, "hang")
        first.kill()
        with ServerProcess(store) as third:  # a starting server sweeps; others do so later
            assert third.client.responses.retrieve(name).status == "failed"
        assert other.client.responses.retrieve(name).status == "failed"
