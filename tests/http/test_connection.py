"""Limits of one TCP connection: headers, bodies, deadlines, upgrades, and how it is closed."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator
from contextlib import nullcontext, suppress

import httpx
import pytest

from dragoman.http import closing
from dragoman.testing import ScriptedEngine
from tests.http.test_app import check_error as check_error_body
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

EXCESS = b"y" * 8_000_000  # far more than socket buffers hold
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)

# Requests that are rejected before they are read whole: status, and the bytes that cause it.
REJECTED = {
    "431 long header": (431, b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 70_000),
    "431 many headers": (431, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200),
    "413 content-length": (413, POST + b"content-length: 99000000\r\n\r\n{"),
    "413 chunked": (413, POST + b"transfer-encoding: chunked\r\n\r\n1000000\r\n" + b"y" * 70_000),
    "408 headers": (408, b"GET / HTTP/1.1\r\nho"),
    "408 body": (408, POST + b"content-length: 60000\r\n\r\n{"),
    "400 request line": (400, b"HELLO\r\n\r\n"),
    "400 chunk size": (400, POST + b"transfer-encoding: chunked\r\n\r\nz\r\n"),
    "415 unread body": (415, POST + b"content-type: text/csv\r\ncontent-length: 99000000\r\n\r\n"),
    "403 websocket": (403, UPGRADE + b"origin: http://example.com\r\n\r\n"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("Hello there!")) as running:
        yield running


@pytest.fixture(scope="module")
def strict_server() -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("x"), receive_timeout=0.3, body_limit=65_000) as running:
        yield running


def connect(server: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def read_all(connection: socket.socket, *, may_reset: bool = False) -> bytes:
    """What the server sends until it closes its side; a reset fails the test."""
    response = b""
    with suppress(ConnectionError) if may_reset else nullcontext():
        while data := connection.recv(65536):
            response += data
    return response


def exchange_raw(server: RunningServer, *parts: bytes) -> bytes:
    with connect(server) as connection:
        for part in parts:
            connection.sendall(part)
        return read_all(connection)


def check_rejection(response: bytes, status: int) -> None:
    assert response.startswith(b"HTTP/1.1 %d " % status)
    assert response.count(b"HTTP/1.1 ") == 1
    assert json.loads(response.split(b"\r\n\r\n", 1)[1])["error"]["message"]


@pytest.mark.parametrize(("status", "request_bytes"), REJECTED.values(), ids=REJECTED)
def test_rejection_reaches_a_client_that_sends_everything_at_once(
    strict_server: RunningServer, status: int, request_bytes: bytes
) -> None:
    excess = b"" if status == 408 else EXCESS  # a late request sends nothing more
    check_rejection(exchange_raw(strict_server, request_bytes + excess), status)


@pytest.mark.parametrize(("status", "request_bytes"), REJECTED.values(), ids=REJECTED)
def test_rejection_reaches_a_client_that_keeps_sending(
    strict_server: RunningServer, status: int, request_bytes: bytes
) -> None:
    with connect(strict_server) as connection:
        connection.sendall(request_bytes)
        assert select.select([connection], [], [], 20)[0]  # the response is there, unread
        is_closed_at_once = status == 408  # it was given time enough
        with suppress(ConnectionError) if is_closed_at_once else nullcontext():
            for start in range(0, 1_000_000, 50_000):
                connection.sendall(EXCESS[start : start + 50_000])
        check_rejection(read_all(connection, may_reset=is_closed_at_once), status)


def test_response_reaches_a_client_that_pipelines_too_much(server: RunningServer) -> None:
    get = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    body = json.dumps(make_chat()).encode()
    post = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    response = exchange_raw(server, POST + post + body + get * 50_000)
    assert response.startswith(b"HTTP/1.1 200 ")


def test_invalid_data_after_a_request_does_not_disturb_its_response(server: RunningServer) -> None:
    body = json.dumps(make_chat()).encode()
    request = POST.replace(b"connection: close\r\n", b"")
    request += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    for parts in ([request + b"garbage\r\n\r\n"], [request, b"garbage\r\n\r\n"]):
        response = exchange_raw(server, *parts)
        assert response.startswith(b"HTTP/1.1 200 ")
        assert response.count(b"HTTP/1.1 ") in (1, 2)  # 2: the rest came after the response


def has_connections(server: RunningServer) -> bool:
    return bool(server._server.server_state.connections)


def test_lingering_ends_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "LINGER_SECONDS", 0.05)
    with serve_scripted(ScriptedEngine("x")) as server, connect(server) as connection:
        connection.sendall(b"HELLO\r\n\r\n")
        check_rejection(read_all(connection), 400)
        poll_until(lambda: not has_connections(server))


def test_lingering_ends_after_some_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "LINGER_BYTES", 100_000)
    monkeypatch.setattr(closing, "LINGER_SECONDS", 1000)
    with serve_scripted(ScriptedEngine("x")) as server, connect(server) as connection:
        connection.sendall(b"HELLO\r\n\r\n")
        check_rejection(read_all(connection), 400)
        assert has_connections(server)
        with pytest.raises(ConnectionError):
            connection.sendall(EXCESS * 5)
        poll_until(lambda: not has_connections(server))


def test_unread_body_ends_a_connection_that_would_be_kept_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing, "LINGER_BYTES", 100_000)
    head = POST.replace(b"connection: close\r\n", b"") + b"content-length: 99000000\r\n\r\n"
    with serve_scripted(ScriptedEngine("x"), body_limit=1000) as server:
        with connect(server) as connection:
            connection.sendall(head)
            response = connection.recv(65536)
            assert response.startswith(b"HTTP/1.1 413 ")
            assert b"connection: close" in response
            with pytest.raises(ConnectionError):
                connection.sendall(EXCESS * 5)
        poll_until(lambda: not has_connections(server))


def test_lingering_does_not_delay_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "LINGER_SECONDS", 1000)
    with serve_scripted(ScriptedEngine("x")) as server, connect(server) as connection:
        connection.sendall(b"HELLO\r\n\r\n")
        check_rejection(read_all(connection), 400)
        assert has_connections(server)
        server.stop()  # raises unless the server ends
        assert not has_connections(server)


def test_body_over_the_limit_gets_413() -> None:
    with serve_scripted(ScriptedEngine("x"), body_limit=1000) as server:
        small = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat("x" * 500))
        assert small.status_code == 200
        for content in (json.dumps(make_chat("x" * 2000)), iter([b"x" * 600] * 5)):
            large = httpx.post(f"{server.url}/v1/chat/completions", content=content)
            assert large.status_code == 413
            assert check_error_body(large)["code"] == "request_too_large"


def test_chunked_body_over_the_limit_gets_413() -> None:
    chunk = b" " * 200
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunk), chunk)
    with serve_scripted(ScriptedEngine("x"), body_limit=100) as server:
        head = POST + b"transfer-encoding: chunked\r\n\r\n"
        for parts in ([head + body], [head, body], [head + body[:50], body[50:]]):
            check_rejection(exchange_raw(server, *parts), 413)


def test_headers_over_the_limit_get_431(server: RunningServer) -> None:
    head = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"
    long = exchange_raw(server, head + b"x: " + b"y" * 70_000 + b"\r\n\r\n")
    many = exchange_raw(server, head + b"".join(b"x%d: y\r\n" % i for i in range(200)) + b"\r\n")
    endless = exchange_raw(server, head + b"x: ", *([b"y" * 30_000] * 5))
    for response in (long, many, endless):
        assert response.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"headers_too_large"' in response


def test_header_limit_applies_to_trailers(server: RunningServer) -> None:
    head = (
        b"POST /health/live HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\nX-T: "
    )
    response = exchange_raw(server, head, *([b"a" * 30_000] * 10))
    assert len(response) < 2000


def test_a_body_in_another_transfer_coding_gets_415(server: RunningServer) -> None:
    response = exchange_raw(
        server,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    )
    check_rejection(response, 415)


@pytest.mark.parametrize("headers", [b"", b"connection: keep-alive\r\n"], ids=["plain", "kept"])
def test_http_1_0_gets_streams_without_chunks(server: RunningServer, headers: bytes) -> None:
    bodies = [json.dumps(make_chat(stream=stream)).encode() for stream in (False, True)]
    whole, stream = (
        exchange_raw(
            server,
            b"POST /v1/chat/completions HTTP/1.0\r\nhost: localhost\r\n%b"
            b"content-length: %d\r\n\r\n%b" % (headers, len(body), body),
        )
        for body in bodies
    )
    head, _, content = stream.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert content.startswith(b"data: {")
    assert content.endswith(b"data: [DONE]\n\n")
    assert b"\r" not in content
    message = json.loads(whole.partition(b"\r\n\r\n")[2])["choices"][0]["message"]
    assert message["content"] == "Hello there!"


def test_upgrade_offer_is_declined_and_the_request_served(server: RunningServer) -> None:
    body = json.dumps(make_chat()).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade, "
        b"HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    for parts in ([head + body], [head, body], [head[:50], head[50:] + body[:5], body[5:]]):
        with connect(server) as connection:
            for part in parts:
                connection.sendall(part)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    tunnel = exchange_raw(server, b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n")
    assert tunnel.startswith(b"HTTP/1.1 400 ")


def test_stray_line_does_not_keep_a_connection_open() -> None:
    with serve_scripted(ScriptedEngine("x"), receive_timeout=0.2) as server:
        server._server.config.timeout_keep_alive = 1
        get = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
        response = exchange_raw(server, get, b"\r\n")
        assert response.startswith(b"HTTP/1.1 200 ")


def test_invalid_http_gets_an_error_object(server: RunningServer) -> None:
    response = exchange_raw(server, b"HELLO\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 400 ")
    assert json.loads(response.split(b"\r\n\r\n", 1)[1])["error"]["code"] == "bad_http"


def test_slow_request_gets_408() -> None:
    with serve_scripted(ScriptedEngine("x"), receive_timeout=0.3) as server:
        assert exchange_raw(server) == b""  # nothing was sent: closed without a response
        headers = exchange_raw(server, b"GET / HTTP/1.1\r\nho")
        assert headers.startswith(b"HTTP/1.1 408 ")
        body = exchange_raw(server, POST + b"content-length: 100\r\n\r\n{")
        assert body.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in body
