"""A server that runs out of file descriptors says so, answers health checks, and recovers."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.server_process import ServerProcess, run_engine_program, run_engine_server
from tests.support.serving import make_chat, poll_until

LIMIT = 64
OPTIONS = 'name="scripted", port=0, queue=1000, patience=0.01'
HANGING = f't.ScriptedEngine(t.Reply("x", hang_at=0)), {OPTIONS}'


@contextmanager
def run_limited_server(engine: str = HANGING) -> Iterator[ServerProcess]:
    with run_engine_server(engine, open_files=LIMIT) as server:
        yield server


def stop(server: ServerProcess) -> str:
    """Stop a server, and return what it has written."""
    os.kill(server.process.pid, signal.SIGTERM)
    output, _ = server.process.communicate(timeout=60)
    assert server.process.returncode == 0, output
    return output


def connect(server: ServerProcess) -> socket.socket:
    port = int(server.url.rsplit(":", 1)[1])
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def count_descriptors(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def make_request() -> bytes:
    body = json.dumps(make_chat(stream=True)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def check_health(server: ServerProcess) -> None:
    for path in ("/health", "/health/live", "/health/ready"):
        response = httpx.get(server.url + path)
        assert response.status_code == 200, response.text
        assert response.headers["connection"] == "close"


@pytest.mark.slow
def test_requests_that_hold_every_descriptor_leave_health_checks_their_own() -> None:
    with run_limited_server() as server, ExitStack() as stack:
        held, refused = [], []
        for _ in range(2 * LIMIT):
            connection = stack.enter_context(connect(server))
            connection.sendall(make_request())
            # streams that were admitted send their headers after `--patience`
            answer = connection.recv(65536)
            if answer.startswith(b"HTTP/1.1 200 "):
                held.append(answer)
                continue
            while part := connection.recv(65536):
                answer += part
            refused.append(answer)
        assert held
        assert len(refused) > LIMIT
        assert {answer[:13] for answer in refused} == {b"HTTP/1.1 503 "}
        assert all(b'"too_many_connections"' in answer for answer in refused)
        assert all(b"retry-after: 1" in answer for answer in refused)
        assert count_descriptors(server) < LIMIT
        for _ in range(3):
            check_health(server)
        other = httpx.get(f"{server.url}/v1/models")
        assert other.status_code == 503
        assert other.json()["error"]["code"] == "too_many_connections"
        stack.close()
        poll_until(lambda: httpx.get(f"{server.url}/v1/models").status_code == 200)
        output = stop(server)
    assert output.count("file descriptors are left") == 1  # logged once in a while, not each time
    assert "ulimit -n" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_idle_connections_make_room() -> None:
    with run_limited_server() as server, ExitStack() as stack:
        for _ in range(3 * LIMIT):
            stack.enter_context(connect(server))
        check_health(server)
        # those that stay idle are closed, so that requests are served again
        poll_until(lambda: httpx.get(f"{server.url}/v1/models").status_code == 200)
        assert "Traceback" not in stop(server)


TAKE_ALL = """
import os, signal, dragoman, dragoman.testing as t

kept = []

def take_or_return(*_):
    if kept:
        while kept:
            os.close(kept.pop())
        return
    try:
        while True:
            kept.append(os.dup(0))
    except OSError:
        pass

signal.signal(signal.SIGUSR1, take_or_return)
dragoman.serve(t.ScriptedEngine("hi"), name="scripted", port=0)
"""


def test_server_without_any_descriptor_refuses_and_recovers() -> None:
    with run_engine_program(TAKE_ALL, open_files=LIMIT) as server:
        os.kill(server.process.pid, signal.SIGUSR1)
        poll_until(lambda: count_descriptors(server) == LIMIT)
        for _ in range(3):
            with connect(server) as connection:
                assert connection.recv(65536).startswith(b"HTTP/1.1 503 ")
        os.kill(server.process.pid, signal.SIGUSR1)
        poll_until(lambda: httpx.get(f"{server.url}/v1/models").status_code == 200)
        output = stop(server)
    assert output.count("cannot accept a connection: Too many open files") == 1
    assert "Traceback" not in output


@pytest.mark.slow
def test_descriptors_that_others_use_count() -> None:
    """The server itself opens files here, as an engine or the database would."""
    takes = "[os.dup(0) for _ in range(38)] and "
    with run_limited_server(f'{takes}t.ScriptedEngine("hi"), {OPTIONS}') as server:
        check_health(server)
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
        assert refused.status_code == 503
        assert "file descriptors are left" in stop(server)
