"""Faults of an upstream server, as clients of each wire API meet them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.testing import Reply, ScriptedWorker, WorkerFaults
from tests.support.forbidden_port import watch_port
from tests.support.serving import RunningServer
from tests.support.upstream_servers import run_worker, serve_upstream, write_tokenizer

TEXT = "one two three four five six"
APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 99},
    ),
    "responses": ("/v1/responses", {"input": "Hi", "store": False}),
    "completions": ("/v1/completions", {"prompt": "Hi", "max_tokens": 99}),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[ScriptedWorker]:
    with run_worker("vllm", Reply(TEXT, chunks="characters"), cached=5) as worker:
        yield worker


@pytest.fixture(scope="module")
def server(
    worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("upstream")
    tokenizer = write_tokenizer(directory / "tokenizer")
    with serve_upstream(
        worker.url, directory, served_name=["m"], tokenizer=str(tokenizer)
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _reset(worker: ScriptedWorker) -> Iterator[None]:
    yield
    worker.faults = None


def send(server: RunningServer, api: str, *, stream: bool) -> httpx.Response:
    path, fields = APIS[api]
    body = {"model": "m", "stream": stream} | fields
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("faults", "status"),
    [
        (WorkerFaults(status=429, retry_after="7"), 429),
        (WorkerFaults(status=503, retry_after="7"), 503),
    ],
    ids=["429", "503"],
)
def test_a_busy_server_is_reported_with_its_delay(
    server: RunningServer,
    worker: ScriptedWorker,
    api: str,
    stream: bool,
    faults: WorkerFaults,
    status: int,
) -> None:
    worker.set_faults(faults)
    response = send(server, api, stream=stream)
    # Anthropic's clients know 529 for a server that is busy
    assert response.status_code == status or (api == "messages" and response.status_code == 529)
    assert response.headers["retry-after"] == "7"
    assert response.json()["error"]["message"]
    worker.set_faults(None)
    assert send(server, api, stream=stream).status_code == 200


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("api", APIS)
def test_redirects_are_not_followed(
    server: RunningServer, worker: ScriptedWorker, api: str, status: int
) -> None:
    with watch_port() as (port, connections):
        for location in (f"http://127.0.0.1:{port}/v1/chat/completions", f"//[::1]:{port}/"):
            worker.set_faults(WorkerFaults(status=status, location=location))
            for stream in (False, True):
                response = send(server, api, stream=stream)
                assert response.status_code == 500
                message = response.json()["error"]["message"]
                assert (
                    message == "The upstream server redirects requests; redirects are not followed."
                )
        assert connections == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_an_answer_that_breaks_off_is_an_error_of_the_api(
    server: RunningServer, worker: ScriptedWorker, api: str, stream: bool
) -> None:
    worker.set_faults(WorkerFaults(close_at=5))
    response = send(server, api, stream=stream)
    if stream:
        assert response.status_code == 200
        assert '"error"' in response.text or "response.failed" in response.text
        assert '"finish_reason":"stop"' not in response.text
        assert '"stop_reason":"end_turn"' not in response.text
        assert "response.completed" not in response.text
    else:
        assert response.status_code == (529 if api == "messages" else 503)
        assert "upstream" in response.json()["error"]["message"]
    assert "127.0.0.1" not in response.text
    check_idle(server)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat"])
def test_a_broken_connection_before_the_first_token_is_not_noticed(
    server: RunningServer, worker: ScriptedWorker, api: str, stream: bool
) -> None:
    worker.set_faults(WorkerFaults(close_at=0, times=1))
    response = send(server, api, stream=stream)
    assert response.status_code == 200
    check_idle(server)


def test_cached_tokens_that_the_server_reports_at_the_end_are_usage(server: RunningServer) -> None:
    usage = send(server, "chat", stream=False).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 5
    assert usage["prompt_tokens"] > 5
    assert usage["completion_tokens"] == len(TEXT)


@pytest.mark.parametrize("api", APIS)
def test_disconnecting_closes_the_request_of_the_server(
    server: RunningServer, worker: ScriptedWorker, api: str
) -> None:
    worker.set_faults(WorkerFaults(hang_at=5))
    path, fields = APIS[api]
    body = {"model": "m", "stream": True} | fields
    with httpx.stream("POST", f"{server.url}{path}", json=body, timeout=60) as response:
        next(response.iter_bytes())
    check_idle(server)
    asyncio.run(wait_until_idle(worker))


async def wait_until_idle(worker: ScriptedWorker) -> None:
    """Wait for a worker that runs in the event loop of another thread."""
    async with asyncio.timeout(60):
        while worker.generating:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def check_idle(server: RunningServer) -> None:
    """Nothing runs any more, once the server has seen the end."""

    async def wait() -> None:
        [model] = server.app.runtime.services.models.list_loaded()
        engine: Any = model.engine
        async with asyncio.timeout(60):
            while engine.running_requests or engine.running_jobs or gate.running:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    gate = server.get_gate()
    server.run_coroutine(wait())
