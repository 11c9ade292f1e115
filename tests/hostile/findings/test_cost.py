"""What a request costs before it is refused: little memory, little processor time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.default_tokenizer import make_serve_options
from tests.support.large_bodies import BODIES, STATUSES, TEXTS, LargeBody, list_large_bodies
from tests.support.process_cost import MIB, measure_cost, read_memory
from tests.support.server_process import ServerProcess, run_engine_server
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow

MAX_MEMORY, MAX_SECONDS = 64 * MIB, 1.0
BODY_LIMIT = 8 * MIB  # that follows from a context of 8,192 tokens
NEARLY_FITTING = 600_000  # bytes; texts of this size are not refused by their length alone
HEADERS = {"content-type": "application/json"}


@contextmanager
def run_scripted_server(options: str) -> Iterator[ServerProcess]:
    """Run a server whose output is read, since a full pipe would block it."""
    with run_engine_server(options) as server:
        reader = threading.Thread(target=lambda: list(server.process.stdout or ()))
        reader.start()
        try:
            yield server
        finally:
            server.process.kill()
            reader.join()  # before the pipe is closed


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[ServerProcess]:
    with run_scripted_server(make_serve_options(default_model)) as running:
        yield running


def list_routes(client: httpx.Client) -> list[str]:
    """List the routes of the live table that take a body."""
    paths = client.get("/openapi.json").json()["paths"]
    return [
        f"{method.upper()} {path}" for path in paths for method in paths[path] if method == "post"
    ]


def list_bodies(client: httpx.Client) -> Iterator[LargeBody]:
    routes = list_routes(client)
    assert BODIES.keys() <= set(routes), "a route of the table of bodies does not exist"
    yield from list_large_bodies(routes, BODY_LIMIT, ("quotes", "wide"))
    for body in list_large_bodies(routes, NEARLY_FITTING, ("prose", "emoji")):
        if body.shape in TEXTS or body.shape == "19,000 items":
            yield body


def check_costs(server: ServerProcess, every: int) -> dict[str, float]:
    """Send each `every`-th of the bodies; return how many, and the cost of the dearest."""
    pid = server.process.pid
    cases, most_memory, most_seconds, expensive = 0, 0, 0.0, []
    with httpx.Client(base_url=server.url, timeout=60, headers=HEADERS) as client:
        conversation = client.post("/v1/conversations", json={}).json()["id"]
        for body in islice(list_bodies(client), 0, None, every):
            path = body.route.split()[1].replace("{id}", conversation)
            with measure_cost(pid) as cost:
                response = client.post(path, content=body.content)
            assert response.status_code in STATUSES, (body[:2], response.text[:200])
            cases += 1
            if response.status_code == 200:
                continue
            most_memory, most_seconds = (
                max(most_memory, cost.memory),
                max(most_seconds, cost.seconds),
            )
            if cost.memory > MAX_MEMORY or cost.seconds > MAX_SECONDS:
                expensive.append(f"{body.route}, {body.shape}, {len(body.content)}: {cost}")
    assert not expensive
    return {
        "requests": cases,
        "most memory in MiB": most_memory // MIB,
        "most processor time in seconds": round(most_seconds, 2),
    }


@measures_time
def test_no_request_is_expensive_before_it_is_refused(server: ServerProcess) -> None:
    """With some of the shapes for each route, and some of the routes for each shape."""
    print(f"\nlarge bodies: {check_costs(server, every=11)}")


@pytest.mark.parametrize("shape", ["prose", "quotes"])
@measures_time
def test_a_large_websocket_message_is_refused_cheaply(server: ServerProcess, shape: str) -> None:
    message = f'{{"type":"response.create","model":"scripted","input":{TEXTS[shape](5 * MIB)}}}'
    address = server.url.replace("http:", "ws:") + "/v1/responses"
    with (
        connect(address, max_size=None, proxy=None) as session,
        measure_cost(server.process.pid) as cost,
    ):
        session.send(message)
        error = json.loads(session.recv(timeout=60))
    assert error["error"]["code"] == "context_length_exceeded"
    assert cost.memory <= MAX_MEMORY
    assert cost.seconds <= MAX_SECONDS


@measures_time
def test_a_large_conversation_is_not_loaded(server: ServerProcess) -> None:
    item = {"type": "message", "role": "user", "content": "a" * (6 * MIB)}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        conversation = client.post("/v1/conversations", json={}).json()["id"]
        for _ in range(4):
            path = f"/v1/conversations/{conversation}/items"
            assert client.post(path, json={"items": [item]}).status_code == 200
        body = {"model": "scripted", "input": "hi", "conversation": conversation}
        with measure_cost(server.process.pid) as cost:
            response = client.post("/v1/responses", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "conversation"
    assert cost.memory < 8 * MIB


def check_three_large_prompts(server: ServerProcess, status: int) -> None:
    text = "the quick brown fox " * (32 * MIB // 20)
    body = f'{{"model":"scripted","messages":[{{"role":"user","content":"{text}"}}]}}'.encode()
    with (
        httpx.Client(base_url=server.url, timeout=60, headers=HEADERS) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        client.get("/health/ready")
        with measure_cost(server.process.pid) as cost:
            send = lambda _: client.post("/v1/chat/completions", content=body)  # noqa: E731
            statuses = [response.status_code for response in pool.map(send, range(3))]
    print(f"\n3 × 32 MiB: {cost}")
    assert statuses == [status] * 3
    assert cost.memory < 200 * MIB
    assert cost.seconds < 3 * MAX_SECONDS


@measures_time
def test_three_prompts_of_32_mb_at_once(server: ServerProcess) -> None:
    check_three_large_prompts(server, 413)


@measures_time
def test_three_prompts_of_32_mb_within_the_body_limit(default_model: Path) -> None:
    options = make_serve_options(default_model, body_limit=64 * MIB)
    with run_scripted_server(options) as server:
        check_three_large_prompts(server, 400)


@measures_time
def test_memory_is_given_back(server: ServerProcess) -> None:
    prose = TEXTS["prose"](NEARLY_FITTING)
    body = f'{{"model":"scripted","messages":[{{"role":"user","content":{prose}}}]}}'.encode()
    with httpx.Client(base_url=server.url, timeout=60, headers=HEADERS) as client:
        sizes = []
        for _ in range(12):
            response = client.post("/v1/chat/completions", content=body)
            assert "at least" in response.json()["error"]["message"]
            sizes.append(read_memory(server.process.pid, "VmRSS"))
    assert sizes[-1] - sizes[3] < 16 * MIB
