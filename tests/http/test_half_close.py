"""Clients that close their sending half get their answer; clients that disconnect cancel it."""

from __future__ import annotations

import http.client
import io
import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dragoman.http.network import half_close
from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
TEXT = "one two three four"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


def make_body(path: str, streamed: bool) -> dict[str, Any]:
    if path == RESPONSES:
        return {"model": "scripted", "input": "hi", "stream": streamed}
    return make_chat(stream=streamed, max_tokens=100)


def make_request(path: str, streamed: bool, version: str = "1.1") -> bytes:
    body = json.dumps(make_body(path, streamed)).encode()
    head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def send_request(server: RunningServer, request: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(request)
        yield client


def read_response(client: socket.socket) -> tuple[int, bytes]:
    """Read to the end of the connection, and parse what was read as HTTP."""
    data = b""
    while part := client.recv(65536):
        data += part

    class Recording:
        def makefile(self, *_: object) -> io.BytesIO:
            return io.BytesIO(data)

    response = http.client.HTTPResponse(Recording())  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


def tick(server: RunningServer, engine: ScriptedEngine, times: int) -> None:
    for _ in range(times):
        server.loop.call_soon_threadsafe(engine.tick)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first token", "after it"])
def test_half_closing_client_gets_its_whole_answer(path: str, streamed: bool, steps: int) -> None:
    engine = ScriptedEngine(Reply(TEXT), pace=None)
    with serve_scripted(engine) as server:
        with send_request(server, make_request(path, streamed)) as client:
            poll_until(lambda: engine.active == 1)
            tick(server, engine, steps)
            poll_until(lambda: engine.steps >= steps)
            client.shutdown(socket.SHUT_WR)
            poll_until(lambda: is_half_closed(server))
            tick(server, engine, 10)
            status, body = read_response(client)
        assert status == 200
        assert b"four" in body


def is_half_closed(server: RunningServer) -> bool:
    connections = list(server._server.server_state.connections)
    return any(getattr(connection, "_half_close", None) is not None for connection in connections)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_request_and_end_of_input_may_arrive_together(version: str) -> None:
    with serve_scripted(TEXT) as server:
        for path in (CHAT, RESPONSES):
            with send_request(server, make_request(path, False, version)) as client:
                client.shutdown(socket.SHUT_WR)
                status, body = read_response(client)
            assert (status, TEXT in body.decode()) == (200, True)


def test_half_closing_client_gets_an_error_with_its_status() -> None:
    engine = ScriptedEngine(Reply("x", hang_at=0), slots=1)
    with (
        serve_scripted(engine, queue=1, drain=0.1) as server,
        send_request(server, make_request(CHAT, True)),
        send_request(server, make_request(CHAT, False)) as waiting,
    ):
        poll_until(lambda: server.get_gate().waiting == 1)
        waiting.shutdown(socket.SHUT_WR)
        poll_until(lambda: is_half_closed(server))
        server._server.handle_exit(15, None)
        status, body = read_response(waiting)
        assert status == 503
        assert json.loads(body)["error"]["code"] == "draining"


def disconnect(client: socket.socket) -> None:
    client.close()


def shut_both(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_RDWR)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


@pytest.mark.parametrize("leave", [disconnect, shut_both, reset])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("steps", [0, 2], ids=["before the first token", "after it"])
def test_disconnect_cancels_although_nothing_more_is_sent(
    leave: Callable[[socket.socket], None], streamed: bool, steps: int
) -> None:
    engine = ScriptedEngine(Reply(TEXT), pace=None)  # it makes no step until it is allowed to
    with serve_scripted(engine) as server:
        with send_request(server, make_request(CHAT, streamed)) as client:
            poll_until(lambda: engine.active == 1)
            tick(server, engine, steps)
            poll_until(lambda: engine.steps >= steps)
            leave(client)
            poll_until(lambda: engine.active == 0)
        assert engine.cancelled == 1
        poll_until(lambda: not server._server.server_state.connections)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_client_that_half_closes_and_disconnects_later_is_noticed(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_close, "FIRST_PROBE", 0.05)
    engine = ScriptedEngine(Reply(TEXT), pace=None)
    with serve_scripted(engine, ping=0.1) as server:
        with send_request(server, make_request(CHAT, streamed)) as client:
            poll_until(lambda: engine.active == 1)
            client.shutdown(socket.SHUT_WR)
            poll_until(lambda: is_half_closed(server))
        poll_until(lambda: engine.active == 0)
        assert engine.cancelled == 1


def test_system_probes_clients_that_are_silent() -> None:
    with serve_scripted("x", stall=7) as server, send_request(server, b"GET / HTTP/1.1\r\n"):
        poll_until(lambda: bool(server._server.server_state.connections))
        [connection] = server._server.server_state.connections
        opened = connection.transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000


def test_end_of_input_inside_a_request_closes_the_connection() -> None:
    with serve_scripted("x") as server:
        for part in (b"", b"POST", make_request(CHAT, False)[:-1]):
            with send_request(server, part) as client:
                client.shutdown(socket.SHUT_WR)
                assert client.recv(100) == b""
        poll_until(lambda: not server._server.server_state.connections)
