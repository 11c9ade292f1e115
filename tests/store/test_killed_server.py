"""State outlives its server: killed, stopped, or one of two on the same database.

Runs on SQLite, and on PostgreSQL where there is one (`make test-postgres`).
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
from tests.support.state_server import WORDS, Spawned
from tests.support.stores import KINDS, address

TEXTS = {"quick": "Done at once.", "slow": WORDS}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with address(request.param, tmp_path) as url:
        yield url


def begin(client: OpenAI, text: str) -> str:
    made = client.responses.create(model="scripted", input=text, background=True)
    return str(made.id)


def frames(server: Spawned, name: str, after: int = -1) -> list[bytes]:
    url = f"{server.url}/v1/responses/{name}?stream=true&starting_after={after}"
    got = httpx.get(url, timeout=30)
    blocks = [block for block in got.text.split("\n\n") if block and not block.startswith(":")]
    return [f"{block}\n\n".encode() for block in blocks]


def check_told(told: list[bytes], status: str) -> None:
    """What was told of a response that may have been cut: nothing is missing, and it has an end."""
    events = [json.loads(frame.split(b"\ndata: ")[1]) for frame in told]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == f"response.{status}"
    if status == "completed":
        check_responses(told)


def test_what_was_acknowledged_outlives_a_kill(store: str) -> None:
    with Spawned(store) as server:
        client = server.client
        kept = client.responses.create(model="scripted", input="hello")
        names = {begin(client, text): text for text in ("quick", "slow") * 10}
        before = {name: client.responses.retrieve(name).status for name in names}
        for name in [name for name, text in names.items() if text == "quick"][:5]:
            frames(server, name)  # heard to its end
            before[name] = client.responses.retrieve(name).status
        server.kill()
    assert "completed" in before.values()
    assert {"queued", "in_progress"} & set(before.values())
    with Spawned(store) as server:
        client = server.client
        assert client.responses.retrieve(kept.id).to_dict() == kept.to_dict()
        for name, text in names.items():
            found = client.responses.retrieve(name)
            assert found.status in ("completed", "failed")
            if before[name] == "completed":
                assert found.status == "completed"
            if found.status == "completed":
                assert found.output_text == TEXTS[text]
            else:
                assert found.error is not None
                assert found.error.code == "server_error"
            check_told(frames(server, name), found.status)
        going_on = client.responses.create(
            model="scripted", input="and?", previous_response_id=kept.id
        )
        assert going_on.status == "completed"
        assert server.stop() == -signal.SIGTERM


def test_stopping_leaves_nothing_half(store: str) -> None:
    with Spawned(store) as server:
        name = begin(server.client, "hang")
        assert server.stop() == -signal.SIGTERM
    with Spawned(store) as server:
        assert server.client.responses.retrieve(name).status == "failed"
        check_responses(frames(server, name))


def test_two_servers_share_what_they_keep(store: str) -> None:
    with Spawned(store) as one, Spawned(store) as other:
        here, there = one.client, other.client
        first = here.responses.create(model="scripted", input="hello")
        second = there.responses.create(
            model="scripted", input="and?", previous_response_id=first.id
        )
        assert here.responses.retrieve(second.id).to_dict() == second.to_dict()
        name = begin(here, "slow")
        heard = frames(other, name)  # while it runs next door
        check_responses(heard)
        assert heard == frames(one, name)
        assert json.loads(heard[-1].split(b"\ndata: ")[1])["response"]["status"] == "completed"
        stuck = begin(here, "hang")
        assert there.responses.cancel(stuck).status == "cancelled"
        assert here.responses.retrieve(stuck).status == "cancelled"
        talk: Any = here.conversations.create()
        for client in (here, there, here):
            client.responses.create(model="scripted", input="hello", conversation=talk.id)
        assert len(list(there.conversations.items.list(talk.id))) == 6


def test_a_server_that_dies_is_noticed_by_the_other(store: str) -> None:
    with Spawned(store) as one, Spawned(store) as other:
        name = begin(one.client, "hang")
        one.kill()
        with Spawned(store) as third:  # the next one to come sweeps; on its own time so does any
            assert third.client.responses.retrieve(name).status == "failed"
        assert other.client.responses.retrieve(name).status == "failed"
