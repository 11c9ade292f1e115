"""What belongs to a request is freed with it, and not at the next garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.http.asgi import RequestContext
from dragoman.types import Request
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

REQUESTS = 10
INPUT = {"model": "scripted", "input": "hi"}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", make_chat()),
    "chat stream": ("/v1/chat/completions", make_chat(stream=True)),
    "stored chat": ("/v1/chat/completions", make_chat(store=True)),
    "invalid value": ("/v1/chat/completions", make_chat(temperature=99)),
    "unknown path": ("/v1/nothing", make_chat()),
    "completion": ("/v1/completions", {"model": "scripted", "prompt": "hi"}),
    "message stream": ("/v1/messages", make_chat(max_tokens=9, stream=True)),
    "response": ("/v1/responses", INPUT),
    "response stream": ("/v1/responses", INPUT | {"stream": True}),
    "response that is not stored": ("/v1/responses", INPUT | {"store": False}),
    "tokens": ("/v1/responses/input_tokens", INPUT),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted("Hello there!", api_key=("a-key-of-some-length",)) as running:
        yield running


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def count_requests() -> int:
    return sum(isinstance(each, RequestContext | Request) for each in gc.get_objects())


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("case", BODIES)
def test_a_request_leaves_nothing_for_the_garbage_collector(
    server: RunningServer, case: str
) -> None:
    path, body = BODIES[case]
    before = count_requests()
    headers = {"authorization": "Bearer a-key-of-some-length"}
    with httpx.Client(base_url=server.url, headers=headers) as client:
        statuses = {client.post(path, json=body).status_code for _ in range(REQUESTS)}
    assert len(statuses) == 1
    poll_until(lambda: count_requests() < before + REQUESTS // 2)
