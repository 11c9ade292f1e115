"""The store between tenants: evictions, a locked database, a full disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import serve_scripted
from tests.support.state_server import TEMPLATE

TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "And now?"},
]
STATELESS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/messages": {"messages": TURNS, "max_tokens": 50, "thinking": {"type": "disabled"}},
    "/v1/responses": {"input": TURNS, "store": False},
    "/tokenize": {"prompt": "Hello"},
    "/v1/messages/count_tokens": {"messages": TURNS},
}


@contextmanager
def serve(store: str, **options: Any) -> Iterator[httpx.Client]:
    engine = ScriptedEngine([Reply("Hello there!")], tokens=True)
    with (
        serve_scripted(engine, chat_template=TEMPLATE, store=store, **options) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def post(client: httpx.Client, path: str, key: str = "", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return client.post(path, json={"model": "scripted", **body}, headers=headers)


def test_one_keys_writes_evict_nothing_of_another(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with serve(store, api_key=("ann", "bob"), store_size=300_000) as client:
        kept = post(client, "/v1/responses", "ann", input="Remember this.").json()["id"]
        first = ""
        for _ in range(30):
            answer = post(client, "/v1/responses", "bob", input="x" * 30_000)
            first = first or answer.json()["id"]

        def get(response: str, key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return client.get(f"/v1/responses/{response}", headers=headers).status_code

        while get(first, "bob") == 200:  # until a sweep has deleted bob's oldest response
            post(client, "/v1/responses", "bob", input="x" * 30_000)
        assert get(kept, "ann") == 200


@pytest.mark.parametrize("path", STATELESS)
def test_a_locked_database_delays_nobody_who_does_not_need_it(path: str, tmp_path: Path) -> None:
    """The lock outlives every request, so a request that waited for it would fail."""
    file = tmp_path / "store.db"
    with serve(f"sqlite:///{file}?timeout=600") as client:
        post(client, "/v1/responses", input="This opens the database.")
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            answer = post(client, path, **STATELESS[path])
            assert answer.status_code == 200, answer.text
        finally:
            holder.execute("COMMIT")
            holder.close()


def test_a_locked_database_fails_fast_for_those_who_need_it(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    with serve(f"sqlite:///{file}?timeout=0.5") as client:
        stored = post(client, "/v1/responses", input="Hello").json()
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        # an answer that was generated is never lost: it is sent, marked as not stored
        answer = post(client, "/v1/responses", input="Hello")
        assert answer.status_code == 200
        assert answer.json()["store"] is False
        refused = [
            post(client, "/v1/responses", input="Hello", background=True),
            client.post("/v1/conversations", json={}),
            client.delete(f"/v1/responses/{stored['id']}"),
        ]
        for response in refused:
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] == "store_unavailable"
            assert int(response.headers["retry-after"]) >= 1
        assert client.get(f"/v1/responses/{stored['id']}").status_code == 200  # reading works
        assert client.get("/health/ready").status_code == 200
        holder.execute("COMMIT")
        holder.close()
        assert client.delete(f"/v1/responses/{stored['id']}").status_code == 200
