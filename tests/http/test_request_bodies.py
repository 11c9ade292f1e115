"""Bodies that are refused are not read on; bodies and messages that drip end with their socket."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

CHAT = "/v1/chat/completions"
KEY = "x-api-key: secret\r\n"
# Why a body is refused: status, path and headers.
REFUSED = {
    "no key": (401, CHAT, ""),
    "wrong key": (401, CHAT, "authorization: Bearer wrong\r\n"),
    "no admin": (403, "/admin/models/load", KEY),
    "other site": (403, CHAT, f"{KEY}origin: https://evil.example\r\n"),
    "unknown path": (404, "/v1/nothing", KEY),
    "wrong method": (405, "/v1/models", KEY),
    "no JSON": (415, CHAT, f"{KEY}content-type: text/csv\r\n"),
    "compressed": (415, CHAT, f"{KEY}content-encoding: gzip\r\n"),
}
DECLARED = 50_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted("Hello!", api_key=("secret",), receive_timeout=20) as running:
        yield running


@contextmanager
def send(server: RunningServer, data: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        yield connection


def make_head(path: str, headers: str, length: str = f"content-length: {DECLARED}") -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}{length}\r\n\r\n".encode()


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            answer += part
    return answer


def count_accepted_bytes(connection: socket.socket) -> int:
    """Send until the server does not take more, or closes."""
    connection.settimeout(None)
    connection.setblocking(False)
    sent, data = 0, b"y" * 65536
    try:
        while sent < DECLARED and select.select([], [connection], [], 20)[1]:
            sent += connection.send(data)
    except ConnectionError:
        return sent
    return sent


@pytest.mark.parametrize(("status", "path", "headers"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("expects", [False, True], ids=["", "expect 100-continue"])
def test_refused_body_is_answered_before_it_arrives(
    server: RunningServer, status: int, path: str, headers: str, expects: bool
) -> None:
    headers += "expect: 100-continue\r\n" if expects else ""
    with send(server, make_head(path, headers)) as connection:
        answer = read_all(connection)  # the server closes its side; nothing of the body was sent
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert answer.startswith(b"HTTP/1.1 %d " % status)  # and no 100 before it
    assert b"connection: close" in head


def test_body_that_is_too_large_is_refused_by_its_length() -> None:
    with serve_scripted("x", body_limit=1000) as server:
        for expects in ("", "expect: 100-continue\r\n"):
            with send(server, make_head(CHAT, expects)) as connection:
                assert read_all(connection).startswith(b"HTTP/1.1 413 ")


def test_busy_and_stopping_servers_do_not_read_bodies_on() -> None:
    engine = ScriptedEngine(Reply("x", hang_at=0), slots=1)
    with serve_scripted(engine, drain=20) as server:
        body = json.dumps(make_chat(stream=True)).encode()
        head = make_head(CHAT, "", f"content-length: {len(body)}")
        with send(server, head + body):
            poll_until(lambda: engine.active == 1)
            server._server.handle_exit(15, None)
            poll_until(lambda: server.app.responder.drain_seconds is not None)
            with send(server, make_head(CHAT, "", f"content-length: {len(body)}") + body) as late:
                assert late.recv(65536).startswith(b"HTTP/1.1 503 ")


def test_client_is_asked_to_continue_only_for_a_body_that_is_read(server: RunningServer) -> None:
    body = json.dumps(make_chat()).encode()
    headers = f"{KEY}expect: 100-continue\r\n"
    with send(server, make_head(CHAT, headers, f"content-length: {len(body)}")) as connection:
        assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("length", [f"content-length: {DECLARED}", "transfer-encoding: chunked"])
def test_what_is_read_of_a_refused_body_is_bounded(server: RunningServer, length: str) -> None:
    head = make_head(CHAT, "", length)
    if "chunked" in length:
        head += b"%x\r\n" % DECLARED
    with send(server, head) as connection:
        # 8 MiB are read so that the client can read the answer, and the buffers hold some more
        assert count_accepted_bytes(connection) < DECLARED / 2
    poll_until(lambda: not server._server.server_state.connections)


# What drips

CHUNKED = "transfer-encoding: chunked"
DRIPPED = {
    "body": (make_head(CHAT, "", "content-length: 9999"), b"x"),
    "chunk": (make_head(CHAT, "", CHUNKED) + b"ffff\r\n", b"x"),
    "chunks": (make_head(CHAT, "", CHUNKED), b"1\r\n \r\n"),
    "trailers": (make_head(CHAT, "", CHUNKED) + b"2\r\n{}\r\n0\r\n", b"x-t: 1\r\n"),
    "trailer": (make_head(CHAT, "", CHUNKED) + b"2\r\n{}\r\n0\r\nx-t: ", b"y"),
    "headers": (b"POST / HTTP/1.1\r\n", b"x: y\r\n"),
    "header": (b"POST / HTTP/1.1\r\nx: ", b"y"),
}


@pytest.fixture(scope="module")
def hasty_server() -> Iterator[RunningServer]:
    with serve_scripted("x", receive_timeout=0.4) as running:
        yield running


def drip(connection: socket.socket, part: bytes) -> tuple[bytes, bool]:
    """Send a part every few milliseconds; return the answer, and whether the socket was closed."""
    answer = b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            connection.sendall(part)
        except ConnectionError:  # a write after the end: the socket is gone, not only its half
            return answer, True
        if select.select([connection], [], [], 0.02)[0]:
            with suppress(ConnectionError):
                answer += connection.recv(65536)
    return answer, False


@pytest.mark.slow
@pytest.mark.parametrize(("start", "part"), DRIPPED.values(), ids=DRIPPED)
def test_socket_of_a_request_that_drips_closes_with_its_408(
    hasty_server: RunningServer, start: bytes, part: bytes
) -> None:
    with send(hasty_server, start) as connection:
        started = time.monotonic()
        answer, is_closed = drip(connection, part)
        assert is_closed
        assert time.monotonic() - started < 10  # once more as long as it was allowed, and no more
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    poll_until(lambda: not hasty_server._server.server_state.connections)


UPGRADE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
FRAMES = {
    "frame": (b"\x81\xfe\xff\xff\0\0\0\0", b"x"),
    "fragments": (b"\x01\x80\0\0\0\0", b"\x00\x81\0\0\0\0x"),
    "header of a frame": (b"\x81", b""),
}


@pytest.mark.parametrize(("start", "part"), FRAMES.values(), ids=FRAMES)
def test_websocket_with_a_message_that_drips_is_closed_at_once(
    hasty_server: RunningServer, start: bytes, part: bytes
) -> None:
    with send(hasty_server, UPGRADE) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")
        connection.sendall(start)
        if part:
            answer, is_closed = drip(connection, part)
            assert is_closed
        else:
            answer = read_all(connection)
        assert answer[:1] == b"\x88"  # a close frame
        assert answer[2:4] == (1008).to_bytes(2, "big")
    poll_until(lambda: not hasty_server._server.server_state.connections)


# What follows a chunked body

TRAILERS = {
    "another key": b"authorization: Bearer wrong\r\n",
    "another host": b"host: evil.example\r\n",
    "a page": b"origin: https://evil.example\r\n",
    "a type": b"content-type: text/csv\r\n",
    "an id": b"x-request-id: from-the-trailer\r\n",
    "an expectation": b"expect: 100-continue\r\n",
}


@pytest.mark.parametrize("trailer", TRAILERS.values(), ids=TRAILERS)
def test_trailers_are_no_headers(server: RunningServer, trailer: bytes) -> None:
    body = json.dumps(make_chat()).encode()
    head = make_head(CHAT, KEY, f"connection: close\r\n{CHUNKED}")
    whole = head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)
    with send(server, whole) as connection:
        response = read_all(connection)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"from-the-trailer" not in response
