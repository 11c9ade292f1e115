"""The memory that all request bodies may take together."""

from __future__ import annotations

import json
import resource
from collections import deque
from contextlib import ExitStack

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode, Frame, Opcode
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from dragoman.engines.system_memory import read_available_memory
from dragoman.errors import OutOfMemory
from dragoman.http.network import body_budget
from dragoman.http.network.body_budget import MAXIMUM, SHARE, BodyBudget
from dragoman.testing import Reply, ScriptedEngine
from tests.support.fault_clients import connect, encode_request, make_body, read_until
from tests.support.serving import RunningServer, poll_until, serve_scripted

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


def open_websocket(server: RunningServer) -> ClientConnection:
    address = f"ws://127.0.0.1:{server.port}/v1/responses"
    return connect_websocket(address, compression=None, proxy=None, max_size=None)


def make_message(text: str) -> str:
    return json.dumps({"type": "response.create", "model": "scripted", "input": text})


def get_left(server: RunningServer) -> int:
    """Return how many bytes the server would still accept."""
    return server.app.body_limit.budget.left


def check_closed(client: ClientConnection) -> None:
    with pytest.raises(ConnectionClosed) as caught:
        deque(iter(lambda: client.recv(timeout=20), None))
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == CloseCode.TRY_AGAIN_LATER
    assert "too many large requests" in caught.value.rcvd.reason


def test_messages_count_until_they_are_answered() -> None:
    engine = ScriptedEngine([Reply("x", when="wait", hang_at=0), Reply("Hello.")])
    with serve_scripted(engine) as server, ExitStack() as stack:
        whole = get_left(server)
        clients = [stack.enter_context(open_websocket(server)) for _ in range(4)]
        for client in clients:
            client.send(make_message("x" * SIZE + " wait"))
        poll_until(lambda: engine.active == 4)
        assert get_left(server) < whole - 4 * SIZE
        refused = httpx.post(server.url + PATH, json=make_body(PATH, "x" * SIZE))
        assert refused.status_code == 503  # bodies and messages share the budget
        other = stack.enter_context(open_websocket(server))
        other.send(make_message("x" * SIZE))
        check_closed(other)
        for client in clients:
            client.close()
        poll_until(lambda: get_left(server) == whole)
        another = stack.enter_context(open_websocket(server))
        for _ in range(6):  # one after the other
            another.send(make_message("x" * SIZE))
            while json.loads(another.recv(timeout=20))["type"] != "response.completed":
                pass
        another.close()
        poll_until(lambda: get_left(server) == whole)


@pytest.mark.parametrize("in_fragments", [False, True])
def test_unfinished_messages_count(in_fragments: bool) -> None:
    part = b"x" * (SIZE + 20)
    first = Frame(Opcode.TEXT, part, fin=False).serialize(mask=True)
    if not in_fragments:  # one frame, of which the end is missing
        first = Frame(Opcode.TEXT, part + part).serialize(mask=True)[:SIZE]
    with serve_scripted("Hello.") as server, ExitStack() as stack:
        whole = get_left(server)
        clients = [stack.enter_context(open_websocket(server)) for _ in range(5)]
        for client in clients[:4]:
            client.socket.sendall(first)
        poll_until(lambda: get_left(server) <= whole - 4 * (SIZE - 20))
        clients[4].socket.sendall(first if in_fragments else first + b"x" * 100)
        check_closed(clients[4])
        for client in clients:
            client.socket.close()
        poll_until(lambda: get_left(server) == whole)


KEYS = {name: {"authorization": f"Bearer {name}"} for name in ("anna", "bert")}


def test_bodies_of_one_key_leave_room_for_others() -> None:
    """It holds on to them: requests that run, and uploads that never end."""
    engine = ScriptedEngine([Reply("x", when="wait", hang_at=0), Reply("Hello.")])
    body = make_body(PATH, "x" * (SIZE // 2) + " wait")
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer anna\r\n"
    unfinished = head + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    with serve_scripted(engine, api_key=[*KEYS]) as server, ExitStack() as stack:
        whole = get_left(server)
        for _ in range(2):
            client = stack.enter_context(connect(server.port))
            client.sendall(encode_request(PATH, body, "authorization: Bearer anna"))
        poll_until(lambda: engine.active == 2)
        for _ in range(8):
            client = stack.enter_context(connect(server.port))
            client.sendall(unfinished % (PATH.encode(), SIZE, b" " * (SIZE // 2)))
        large = make_body(PATH, "x" * SIZE)
        poll_until(lambda: get_left(server) < whole - 2 * SIZE)
        answers = {
            name: httpx.post(server.url + PATH, json=large, headers=headers)
            for name, headers in KEYS.items()
        }
        assert answers["bert"].status_code == 200
        assert answers["anna"].status_code == 503
        assert int(answers["anna"].headers["retry-after"]) >= 1
        assert get_left(server) >= whole // 2


def test_bodies_of_background_responses_count_until_these_end() -> None:
    engine = ScriptedEngine([Reply("x", when="wait", hang_at=0), Reply("Hello.")], slots=1)
    fields = {"model": "scripted", "background": True, "input": "x" * SIZE + " wait"}
    with serve_scripted(engine, store="sqlite://") as server:
        whole = get_left(server)
        responses = [httpx.post(f"{server.url}/v1/responses", json=fields) for _ in range(6)]
        statuses = [response.status_code for response in responses]
        assert sorted(statuses) == [200] * 4 + [503] * 2
        assert get_left(server) < whole - 4 * SIZE
        for response in responses[:4]:
            path = f"{server.url}/v1/responses/{response.json()['id']}/cancel"
            assert httpx.post(path).status_code == 200
        poll_until(lambda: get_left(server) == whole)


def test_messages_of_one_key_leave_room_for_others() -> None:
    part = Frame(Opcode.TEXT, b"x" * SIZE, fin=False).serialize(mask=True)
    with serve_scripted("Hello.", api_key=[*KEYS]) as server, ExitStack() as stack:
        whole = get_left(server)
        address = f"ws://127.0.0.1:{server.port}/v1/responses"
        for _ in range(5):
            client = stack.enter_context(
                connect_websocket(address, proxy=None, additional_headers=KEYS["anna"])
            )
            client.socket.sendall(part)
        poll_until(lambda: get_left(server) <= whole - 2 * SIZE)
        large = make_body(PATH, "x" * SIZE)
        assert httpx.post(server.url + PATH, json=large, headers=KEYS["bert"]).status_code == 200
        assert get_left(server) >= whole // 2


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
