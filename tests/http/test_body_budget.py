"""The memory that all request bodies may take together."""

from __future__ import annotations

import json
import resource
from contextlib import ExitStack

import httpx
import pytest

from dragoman.engines.system_memory import read_available_memory
from dragoman.errors import OutOfMemory
from dragoman.http.network import body_budget
from dragoman.http.network.body_budget import MAXIMUM, SHARE, BodyBudget
from dragoman.testing import Reply, ScriptedEngine
from tests.support.fault_clients import connect, encode_request, make_body, read_until
from tests.support.serving import poll_until, serve_scripted

PATH = "/v1/completions"
SIZE = 200_000


@pytest.fixture(autouse=True)
def _small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "MAXIMUM", 5 * SIZE)


@pytest.mark.parametrize("chunked", [False, True])
def test_requests_over_the_budget_are_refused_and_others_continue(chunked: bool) -> None:
    engine = ScriptedEngine([Reply("x", when="wait", hang_at=0), Reply("Hello.")])
    body = make_body(PATH, "x" * SIZE + " wait")
    with serve_scripted(engine) as server, ExitStack() as stack:
        clients = [stack.enter_context(connect(server.port)) for _ in range(4)]
        for client in clients:  # 4 of 5 shares, until they end
            client.sendall(encode_request(PATH, body))
        poll_until(lambda: engine.active == 4)
        large = json.dumps(make_body(PATH, "x" * 2 * SIZE)).encode()
        content = iter([large[:SIZE], large[SIZE:]]) if chunked else large
        headers = {"content-type": "application/json"}
        refused = httpx.post(server.url + PATH, content=content, headers=headers)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "out_of_memory"
        assert int(refused.headers["retry-after"]) >= 1
        small = httpx.post(server.url + PATH, json=make_body(PATH, "small"))
        assert small.status_code == 200
        for client in clients:
            client.close()
        poll_until(lambda: engine.active == 0)
        again = httpx.post(server.url + PATH, content=large, headers=headers)
        assert again.status_code == 200


def test_announced_bytes_that_do_not_arrive_take_nothing() -> None:
    with serve_scripted("Hello.") as server, ExitStack() as stack:
        head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n{"
        for _ in range(20):
            client = stack.enter_context(connect(server.port))
            client.sendall(head % (PATH.encode(), 4 * SIZE))
        client = stack.enter_context(connect(server.port))
        client.sendall(encode_request(PATH, make_body(PATH, "x" * SIZE)))
        assert b" 200 OK" in read_until(client, b"\r\n\r\n")


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_memory_of_a_process_is_what_its_limits_allow(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    limits = {kind: 64 << 20}
    unlimited = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (limits.get(asked, unlimited),) * 2)
    assert read_available_memory() == 64 << 20


def test_budget_is_a_share_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_budget, "MAXIMUM", MAXIMUM)
    small, large = BodyBudget(800), BodyBudget(1 << 50)
    small.take(800 // SHARE)
    large.take(MAXIMUM)
    for budget in (small, large):
        with pytest.raises(OutOfMemory):
            budget.take(1)
        budget.give_back(1)
        budget.take(1)
