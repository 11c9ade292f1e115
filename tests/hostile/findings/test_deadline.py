"""The deadline of a request: in every wire API, before and after its headers, and in the queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from dragoman.config import Settings
from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

HEADER = "x-request-timeout"
CODE, REASON = "deadline_exceeded", "not finished within 0.3 seconds"
# a request for each wire API
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": make_chat(),
    "/v1/completions": {"model": "scripted", "prompt": "hi"},
    "/v1/responses": {"model": "scripted", "input": "hi"},
    "/v1/responses/compact": {"model": "scripted", "input": "hi"},
    "/v1/messages": make_chat(max_tokens=9),
}
STREAMS = [path for path in REQUESTS if not path.endswith("compact")]
SHORT, LONG = {HEADER: "0.3"}, {HEADER: "1000"}


@contextmanager
def serve_stuck(
    path: str = "", hang_at: int = 0, **options: Any
) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    """Serve an engine that makes a few steps for each request, then hangs.

    If there is a path, a first request there is answered, so that nothing is slow for being new.
    """
    script = [Reply("one two three", hang_at=hang_at)]
    if path:
        script.insert(0, Reply("Hello.", max_uses=1))
    engine = ScriptedEngine(script, slots=1)
    with serve_scripted(engine, hang_timeout=600, **options) as server:
        if path:
            assert httpx.post(server.url + path, json=REQUESTS[path]).status_code == 200
        yield server, engine


def get_error(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    ("path", "limits"),
    [(path, "client") for path in REQUESTS]
    + [("/v1/chat/completions", limits) for limits in ("server", "both")],
)
def test_an_answer_that_takes_too_long_is_a_504(path: str, limits: str) -> None:
    headers = {"client": SHORT, "server": {}, "both": LONG}[limits]
    with serve_stuck(path) as (server, engine):
        if limits != "client":
            server.app.responder.request_timeout = float(SHORT[HEADER])
        response = httpx.post(server.url + path, json=REQUESTS[path], headers=headers)
        poll_until(lambda: engine.active == 0)
        assert engine.started == 2
        assert server.get_gate().busy_slots == 0
    assert response.status_code == 504
    assert response.headers["x-should-retry"] == "false"
    assert f"{SHORT[HEADER]} seconds" in get_error(response)["message"]
    kind = get_error(response)["type"]
    assert kind == "timeout_error"
    if path != "/v1/messages":
        assert get_error(response)["code"] == CODE
    warning = response.headers.get("x-dragoman-warning", "")
    assert (HEADER in warning) == (limits == "both")


@pytest.mark.parametrize("headers_first", [False, True])
@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_takes_too_long_ends_with_an_error(path: str, headers_first: bool) -> None:
    """Before the headers it has a status; after them, the error event of its wire API."""
    hang_at, patience = (2, 0) if headers_first else (0, 60)
    with serve_stuck(path, hang_at, patience=patience) as (server, engine):
        body = REQUESTS[path] | {"stream": True}
        response = httpx.post(server.url + path, json=body, headers=SHORT)
        poll_until(lambda: engine.active == 0)  # it hangs until it is cancelled
        assert engine.started == 2
    if not headers_first:
        assert response.status_code == 504
        return
    assert response.status_code == 200
    assert "two" in response.text
    if path == "/v1/messages":
        assert "event: error" in response.text
        assert '"timeout_error"' in response.text
    elif path == "/v1/responses":
        assert "event: response.failed" in response.text
        assert REASON in response.text  # its codes are a closed set
    else:
        *_, error, end = response.text.strip().split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == CODE
        assert end == "data: [DONE]"


def test_a_server_has_no_deadline_unless_the_operator_sets_one() -> None:
    assert Settings().request_timeout == -1
    with serve_scripted(request_timeout=7.5) as server:
        assert server.app.responder.request_timeout == 7.5


def test_waiting_in_the_queue_counts() -> None:
    with serve_stuck() as (server, engine):
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=make_chat(stream=True)):
            poll_until(lambda: engine.active == 1)
            response = httpx.post(url, json=make_chat(), headers=SHORT)
            assert response.status_code == 504
            assert server.get_gate().waiting == 0
        assert engine.started == 1


def test_embeddings_have_a_deadline() -> None:
    with serve_stuck() as (server, engine):
        url = f"{server.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=make_chat(stream=True)):
            poll_until(lambda: engine.active == 1)
            body = {"model": "scripted", "input": "a"}
            response = httpx.post(f"{server.url}/v1/embeddings", json=body, headers=SHORT)
        assert response.status_code == 504


def test_a_background_response_fails_with_the_reason() -> None:
    with serve_stuck("/v1/responses") as (server, engine):
        url = f"{server.url}/v1/responses"
        body = REQUESTS["/v1/responses"] | {"background": True}
        created = httpx.post(url, json=body, headers=SHORT)
        assert created.status_code == 200
        url = f"{url}/{created.json()['id']}"
        poll_until(lambda: httpx.get(url).json()["status"] == "failed")
        assert REASON in httpx.get(url).json()["error"]["message"]
        poll_until(lambda: engine.active == 0)
        assert engine.started == 2


def test_each_response_over_a_websocket_has_its_own_deadline() -> None:
    with serve_stuck() as (server, _):
        url = server.url.replace("http", "ws", 1) + "/v1/responses"
        with connect(url, additional_headers=SHORT) as socket:
            for _ in range(2):
                message = {"type": "response.create", "model": "scripted", "input": "hi"}
                socket.send(json.dumps(message))
                events = [json.loads(socket.recv(timeout=20))]
                while events[-1]["type"] not in ("response.failed", "error"):
                    events.append(json.loads(socket.recv(timeout=20)))
                assert REASON in json.dumps(events[-1])


def test_an_invalid_deadline_is_rejected() -> None:
    with serve_stuck() as (server, engine):
        for value in ("", "0", "-1", "nan", "inf", "1e999", "soon", "1 s", "1,5"):
            for path, body in REQUESTS.items():
                response = httpx.post(server.url + path, json=body, headers={HEADER: value})
                assert response.status_code == 400, (path, value)
                assert HEADER in get_error(response)["message"]
        assert engine.started == 0


def test_an_answer_in_time_is_not_changed() -> None:
    """Timeouts that SDKs report about themselves are not deadlines: a stream resets them."""
    with serve_scripted("Hello there!") as server:
        for headers in (LONG, {HEADER: "1e300"}, {"x-stainless-timeout": "0.001"}):
            for path, body in REQUESTS.items():
                assert httpx.post(server.url + path, json=body, headers=headers).status_code == 200
