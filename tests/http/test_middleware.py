"""Rejections name the path; the log has a line for requests that are never complete."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.support.logs import collect_logs
from tests.support.serving import RunningServer, make_chat, serve_scripted

KEYS = {"api_key": ("user",), "admin_key": ("root",)}
USER = {"authorization": "Bearer user"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted(**KEYS) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/models", {}, 401),
        ("GET", "/v1/models", {"authorization": "Bearer wrong"}, 401),
        ("GET", "/v1/nothing/here", USER, 404),
        ("GET", "/v1/models/absent", USER, 404),
        ("POST", "/v1/chat/completions", USER, 404),
        ("GET", "/v1/responses/resp_absent", USER, 404),
        ("POST", "/admin/models/load", USER, 403),
        ("GET", "/v1/models", {"host": "elsewhere.example"}, 403),
        ("POST", "/v1/chat/completions", {**USER, "x-dragoman-debug": "prompt"}, 403),
        ("POST", "/v1/messages", {"x-api-key": "wrong"}, 401),
    ],
)
def test_rejection_names_the_path(
    server: RunningServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    body = make_chat(model="absent") if method == "POST" else None
    response = httpx.request(method, server.url + path, headers=headers, json=body)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


@pytest.mark.parametrize(("version", "status"), [("1.0", 200), ("1.1", 400)])
def test_host_header_is_required_since_http_1_1(
    server: RunningServer, version: str, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"GET /health/live HTTP/{version}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_path_in_a_message_is_escaped(server: RunningServer) -> None:
    response = httpx.get(f"{server.url}/a%0Ab%1B{'c' * 1000}", headers=USER)
    message = response.json()["error"]["message"]
    assert message.startswith("Unknown path /a\\nb\\x1bccc")
    assert len(message) < 300


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/chat/completions", " Did you mean /v1/chat/completions?"),
        ("/v1/chat/completions/", " Did you mean /v1/chat/completions?"),
        ("/openai/v1/models", " Did you mean /v1/models?"),
        ("/api/v1/models/", " Did you mean /v1/models?"),
        ("/v1/api/chat", " Did you mean /api/chat?"),
        ("/v1/health/live/", " Did you mean /health/live?"),
        (
            "/v1/chat/completions/chat/completions",
            " Did you mean /v1/chat/completions? The base URL of a client ends in /v1.",
        ),
        ("/v1/chat/completion", " Did you mean /v1/chat/completions?"),
        ("/v1/chat/complettions", " Did you mean /v1/chat/completions?"),
        ("/v1/response", " Did you mean /v1/responses?"),
        ("/api/tag", " Did you mean /api/tags?"),
        ("/v1/images/generations", ""),
        ("/" + "v1/chat/completion" * 6, ""),
        ("/v1//", ""),
        ("/nowhere", ""),
    ],
)
def test_path_with_a_wrong_base_is_corrected(server: RunningServer, path: str, hint: str) -> None:
    response = httpx.get(f"{server.url}{path}", headers=USER)
    assert response.status_code == 404
    assert f"Unknown path {path}.{hint} See /docs." in response.text


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"NONSENSE\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", 431)],
)
def test_requests_that_are_never_complete_are_logged(
    server: RunningServer, data: bytes, status: int
) -> None:
    with collect_logs("json") as logs:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(data)
            assert f" {status} ".encode() in connection.recv(4096)
        event = logs.wait_for_event(f" {status} ")
    assert event["status"] == status
    assert event["error"]
