"""Engines that run in this process and hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.support.faulty_engines import ProbedPromptedEngine, PromptedEngine
from tests.support.serving import parse_events, poll_until, serve_scripted

pytestmark = pytest.mark.slow

HANG_TIMEOUT = 0.6
WAIT = HANG_TIMEOUT / 2


@contextmanager
def serve_engine(engine: PromptedEngine) -> Iterator[httpx.Client]:
    with (
        serve_scripted(engine, hang_timeout=HANG_TIMEOUT) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with serve_engine(PromptedEngine()) as client:
        yield client


def complete(client: httpx.Client, prompt: str | list[str], **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "prompt": prompt, "max_tokens": 5, **fields}
    return client.post("/v1/completions", json=body)


def is_ready(client: httpx.Client) -> bool:
    return client.get("/health/ready").status_code == 200


@pytest.mark.parametrize("prompt", ["step hang", "hang", "admit-hang", ["step", "step hang"]])
def test_a_hang_fails_the_request_and_readiness_says_so(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, prompt: str | list[str]
) -> None:
    failed = complete(client, prompt)
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_down")
    problem = client.get("/health/ready")
    assert problem.status_code == 503
    assert "makes no progress" in problem.json()["error"]["message"]
    assert "engine PromptedEngine hangs" in caplog.text
    assert complete(client, f"step wait:{WAIT}").status_code == 200
    poll_until(lambda: is_ready(client))


def test_a_hang_of_a_stream_is_an_error_event(client: httpx.Client) -> None:
    *chunks, failure = parse_events(complete(client, "step step hang", stream=True))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "xx"
    assert failure["error"]["code"] == "engine_down"


def test_a_hang_of_embeddings_is_an_error(client: httpx.Client) -> None:
    failed = client.post("/v1/embeddings", json={"model": "scripted", "input": ["a", "hang"]})
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_down")


@pytest.mark.parametrize(
    "prompt",
    [
        f"{f'step wait:{WAIT} ' * 4}",
        f"wait:{2 * HANG_TIMEOUT} step {'word ' * 200}",
        ["step", f"{f'step wait:{WAIT} ' * 4}"],
    ],
    ids=["slow steps", "a long prompt", "two prompts"],
)
def test_slow_work_is_no_hang(client: httpx.Client, prompt: str | list[str]) -> None:
    assert complete(client, prompt).status_code == 200


def test_an_engine_may_compute_the_whole_answer_first(client: httpx.Client) -> None:
    assert complete(client, f"wait:{2 * HANG_TIMEOUT} step", max_tokens=100).status_code == 200


def test_an_engine_that_answers_probes_may_take_long_and_a_stuck_job_fails_alone() -> None:
    with serve_engine(ProbedPromptedEngine()) as client:
        assert complete(client, f"wait:{3 * HANG_TIMEOUT} step").status_code == 200
        failed = complete(client, "step alone")
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "engine_down")
        assert is_ready(client)
        assert complete(client, "step hang").status_code == 503
        assert not is_ready(client)
