"""Batches outlive their server: killed, stopped, or one of two on the same database.

Runs on SQLite, and on PostgreSQL if one is available (`make test-postgres`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types import Batch

from tests.support.batches import (
    check_answered_once,
    encode_lines,
    make_line,
    read_results,
    start_batch,
    wait_ended,
    wait_for,
)
from tests.support.state_server import ServerProcess
from tests.support.stores import DATABASES, create_database

pytestmark = pytest.mark.slow

LINES = 40
IDS = [f"slow-{number}" for number in range(LINES)]  # each is answered in about a second


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with create_database(request.param, tmp_path) as url:
        yield url


def start(client: OpenAI) -> str:
    lines = [make_line(name) for name in IDS]
    lines.append(make_line("bad", {"model": "scripted", "messages": [], "temperature": 99}))
    return start_batch(client, encode_lines(lines)).id


def has_begun(batch: Batch) -> bool:
    return batch.request_counts is not None and batch.request_counts.completed > 0


def check_result(client: OpenAI, batch: Batch) -> None:
    assert batch.status == "completed"
    check_answered_once(client, batch, [*IDS, "bad"])
    for result in read_results(client, batch.output_file_id):
        assert result["response"]["status_code"] == 200
        assert result["response"]["body"]["choices"][0]["message"]["content"].startswith("word0 ")
    [error] = read_results(client, batch.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("bad", 400)


def test_every_line_is_answered_once_though_servers_end(store: str) -> None:
    """The first is killed, the second is stopped, and the third answers what is left."""
    with ServerProcess(store) as server:
        name = start(server.client)
        wait_for(server.client, name, has_begun)
        server.kill()
    with ServerProcess(store) as server:
        wait_for(server.client, name, has_begun)
        assert server.stop() == -signal.SIGTERM
    with ServerProcess(store) as server:
        check_result(server.client, wait_ended(server.client, name))


def test_two_servers_run_every_batch_once(store: str) -> None:
    """Either may run and cancel it; when one is killed, the other goes on."""
    with ServerProcess(store) as first, ServerProcess(store) as other:
        kept, dropped = start(first.client), start(first.client)
        wait_for(first.client, dropped, has_begun)
        assert other.client.batches.cancel(dropped).status in ("cancelling", "cancelled")
        ended = wait_ended(other.client, dropped)
        assert ended.status == "cancelled"
        check_answered_once(first.client, ended, [*IDS, "bad"])
        errors = read_results(first.client, ended.error_file_id)
        assert "batch_cancelled" in {(error["error"] or {}).get("code") for error in errors}
        first.kill()
        check_result(other.client, wait_ended(other.client, kept))
