"""Headers, bodies, slow clients and request ids, before there is a request to speak of."""

from __future__ import annotations

import json
import resource
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from dragoman.http.router import Route
from dragoman.testing import ScriptedEngine
from tests.support.hostile_http import (
    ADMIN,
    KEYS,
    USER,
    HostileServer,
    make_path,
    name_route,
    serve_hostile,
)
from tests.support.hostile_samples import MODEL, SAMPLES, takes_body
from tests.support.serving import make_scripted_app, poll_until
from tests.support.timing import measures_time

ROUTES = [route for route in make_scripted_app().router.routes if route.method != "WEBSOCKET"]
BODY_ROUTES = [route for route in ROUTES if takes_body(route)]
LIMIT = 100_000  # bytes of a body
CHUNK = b" " * 16_384
SPARE = 8 << 20  # bytes that memory may grow by, besides the limit


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    engine = ScriptedEngine("Hello there!", tokens=True)
    with serve_hostile(engine, **KEYS, body_limit=LIMIT, receive_timeout=5.0) as hostile:
        hostile.send("GET", "/v1/files", key=USER)  # imports what the store needs: 16 MB
        yield hostile


def read_peak() -> int:
    """Return the largest amount of memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


HEADERS: dict[str, bytes] = {
    "one of 64 KB": b"x: " + b"y" * 65_537 + b"\r\n",
    "one without end": b"x: " + b"y" * 10_000_000,
    "a long name": b"x" * 70_000 + b": y\r\n",
    "101 fields": b"".join(b"x%d: y\r\n" % index for index in range(101)),
    "2,000 fields": b"x: y\r\n" * 2_000,
    "a long path": b"",  # 400: the parser has a limit of its own
    "trailers": b"",
}


@pytest.mark.parametrize("name", HEADERS)
def test_hole_39_headers_are_bounded(server: HostileServer, name: str) -> None:
    path = b"/v1/models" + (b"?" + b"x" * 70_000 if name == "a long path" else b"")
    head = b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + HEADERS[name] + b"\r\n"
    if name == "trailers":
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: user-key\r\n"
            b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" + b"x: y\r\n" * 20_000 + b"\r\n"
        )
    before = read_peak()
    response = server.exchange(head)
    assert response.status in ({400, 431} if name in ("trailers", "a long path") else {431})
    assert read_peak() - before <= SPARE
    server.check(response, path="/v1/models")


def make_endless_body(size: int) -> Iterator[bytes]:
    """Yield chunks up to a size, and fail the test if the server reads all of them."""
    for _ in range(size // len(CHUNK)):
        yield CHUNK


@pytest.mark.parametrize("key", [None, ADMIN], ids=["no key", "key"])
@pytest.mark.parametrize("route", ROUTES, ids=name_route)
def test_hole_40_bodies_are_bounded_on_every_route(
    server: HostileServer, route: Route, key: str | None
) -> None:
    """A chunked body of 1 GB: the connection ends after a small part of it."""
    sent = 0

    def send_body() -> Iterator[bytes]:
        nonlocal sent
        for chunk in make_endless_body(1 << 30):
            sent += len(chunk)
            yield chunk

    before = read_peak()
    headers = [] if key is None else [("x-api-key", key)]
    response = server.send_raw(route.method, make_path(route), headers, send_body())
    if key is None and route.access != "open":
        assert response.status == 401
    elif takes_body(route):
        assert response.status in ({404, 413} if route.parameters else {413})
    assert sent < 64 << 20, "the server read a body that it had refused"
    assert read_peak() - before <= LIMIT + SPARE


def test_hole_40_announced_bodies_are_refused_before_they_are_sent(server: HostileServer) -> None:
    for route in BODY_ROUTES:
        headers = [("x-api-key", ADMIN), ("content-length", "1073741824")]
        response = server.send_raw(route.method, make_path(route), headers)
        assert response.status == 413


MULTIPART = b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\nb\r\n" * 1_000 + b"--x--\r\n"


@pytest.mark.parametrize("route", BODY_ROUTES, ids=name_route)
def test_hole_41_no_route_takes_multipart(server: HostileServer, route: Route) -> None:
    for boundary in ("x", "x" * 10_000, '"', "", "x; boundary=y"):
        content_type = f"multipart/form-data; boundary={boundary}"
        headers = [("x-api-key", ADMIN), ("content-type", content_type)]
        response = server.send_raw(route.method, make_path(route), headers, MULTIPART)
        assert response.status == 415
    form = [("x-api-key", ADMIN), ("content-type", "application/x-www-form-urlencoded")]
    response = server.send_raw(route.method, make_path(route), form, b"a=b&" * 1_000)
    assert response.status == (400 if route.dialects[0].accepts_form_type else 415)
    from_page = [*form, ("origin", "http://localhost"), ("sec-fetch-site", "same-origin")]
    response = server.send_raw(route.method, make_path(route), from_page, b"a=b&" * 1_000)
    assert response.status == 415


def test_hole_41_an_upload_has_few_parts_and_a_short_boundary(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    """Whatever the form, it is refused within its first parts, and nothing of it is stored."""
    part = b"--x\r\ncontent-disposition: form-data; name=a%d\r\n\r\nb\r\n"
    many = b"".join(part % number for number in range(10_000)) + b"--x--\r\n"
    forms: list[tuple[str, list[bytes]]] = [
        ("x", [many]),
        ("x", [b"--x\r\n" + b"a: b\r\n" * 200_000]),
        ("x", [b"y" * (1 << 20)]),
        ("x", [b"--x\r\n" * 100_000]),
        ("x", [many[i : i + 1] for i in range(20_000)]),
        ("x" * 10_000, [many]),
        ("", [many]),
    ]
    for boundary, chunks in forms:
        content_type = f"multipart/form-data; boundary={boundary}"
        headers = [("x-api-key", ADMIN), ("content-type", content_type)]
        assert server.send_raw("POST", "/v1/files", headers, chunks).status == 400
    assert server.send("GET", "/v1/files", key=ADMIN).json()["data"] == []
    count_cases(len(forms))


@measures_time
def test_hole_41_a_body_in_single_bytes_costs_little(server: HostileServer) -> None:
    """Each byte is a chunk; the time of the whole request grows with its bytes, not faster."""
    sample = json.dumps({**SAMPLES["/v1/chat/completions"], "user": "u" * 90_000}).encode()

    def measure(size: int) -> float:
        body = [sample[index : index + 1] for index in range(size)]
        started = time.process_time()
        server.send_raw("POST", "/v1/chat/completions", [("x-api-key", USER)], body)
        return time.process_time() - started

    small, large = (min(measure(size) for _ in range(2)) for size in (20_000, 80_000))
    assert large <= 12 * max(small, 0.005)


def test_hole_42_slow_clients_are_disconnected() -> None:
    """300 connections that send a byte now and then: all are closed, others are served."""
    heads = [
        b"",
        b"G",
        b"GET /health/live HTTP/1.1\r\nho",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n\r\n{",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
        b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
        b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n",
    ]
    with serve_hostile("Hello there!", receive_timeout=1.0) as server, ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for index in range(300):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=30)
            )
            connection.sendall(heads[index % len(heads)])
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        deadline = time.monotonic() + 30
        while selector.get_map():
            assert time.monotonic() < deadline, f"{len(selector.get_map())} are still open"
            for key, _ in selector.select(0.1):
                if not receive(key.fileobj):
                    selector.unregister(key.fileobj)
            drip(selector)
            assert server.client.get("/health/live").status_code == 200
        poll_until(lambda: len(server.running._server.server_state.connections) <= 1)


def receive(connection: Any) -> bool:
    """Read what is there; False once the connection is closed."""
    try:
        return bool(connection.recv(65536))
    except ConnectionError:
        return False


def drip(selector: selectors.BaseSelector) -> None:
    """Send one byte on every connection that is still open."""
    for key in list(selector.get_map().values()):
        try:
            key.fileobj.send(b" ")  # type: ignore[union-attr]
        except OSError:
            selector.unregister(key.fileobj)


LARGE_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"model": MODEL, "input": [f"word {number} " * 40 for number in range(500)]},
    "/tokenize": {"model": MODEL, "prompt": "word " * 100_000},
    "/v1/messages/count_tokens": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * 50}] * 300,
    },
    "/v1/completions": {"model": MODEL, "prompt": ["word " * 100] * 100, "max_tokens": 1},
}


@pytest.mark.parametrize("path", LARGE_REQUESTS)
def test_hole_43_no_request_blocks_the_event_loop(path: str) -> None:
    """`serve_hostile` measures the lag; while requests run, health checks are served at once."""
    engine = ScriptedEngine("Hello there!", tokens=True, context=1_000_000)
    with serve_hostile(engine) as server, ThreadPoolExecutor(1) as pool:
        body = json.dumps(LARGE_REQUESTS[path]).encode()
        headers = {"content-type": "application/json"}
        work = pool.submit(server.send, "POST", path, content=body, headers=headers)
        while not work.done():
            assert server.client.get("/health/live").status_code == 200
        assert work.result().status_code in (200, 400)


IDS: list[tuple[bytes, bool]] = [
    (b"same-id", True),
    (b"x" * 128, True),
    (b"x" * 129, False),
    (b"x" * 30_000, False),
    (b"a b", False),
    (b"\xff\xfe", False),
    (b"../../etc/passwd", True),
    (b"<script>", False),
    (b"{}", False),
]


@pytest.mark.parametrize(("request_id", "is_returned"), IDS)
def test_hole_44_ids_of_clients_are_replaced_unless_they_are_plain(
    server: HostileServer, request_id: bytes, is_returned: bool
) -> None:
    response = server.send_raw("GET", "/v1/models", [("x-request-id", request_id)])
    assert (response.headers["x-request-id"].encode("latin-1") == request_id) == is_returned
    assert len(response.headers["x-request-id"]) <= 128


def test_hole_44_equal_ids_do_not_collide(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    """400 requests with one id, 4 at a time: each gets the answer to its own question."""

    def ask(index: int) -> bool:
        body = {"model": MODEL, "prompt": f"question {index}", "echo": True, "max_tokens": 1}
        if index % 2:
            body["stream"] = True
        headers = {"x-request-id": "same-id", "x-api-key": USER}
        response = server.send("POST", "/v1/completions", json=body, headers=headers)
        return response.status_code == 200 and f"question {index}" in join_echo(response.text)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(400)))
    count_cases(400)


def join_echo(text: str) -> str:
    """Join the text of an answer, whose prompt is echoed, streamed or whole."""
    if not text.startswith("data:"):
        return str(json.loads(text)["choices"][0]["text"])
    events = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")
    ]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
