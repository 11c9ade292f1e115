"""`dragoman health` exits with 0 only if the server is ready."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.command_line import run_command
from tests.support.serving import RunningServer, serve_scripted


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_scripted() as server:
        yield server


def test_ready_server(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_command(capsys, "health", "--url", server.url)
    assert (result.code, result.out) == (0, "ready\n")


def test_loading_server(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.app.readiness, "startup_model", "big-model")
    result = run_command(capsys, "health", "--url", server.url)
    assert result.code == 1
    assert "big-model" in result.err


def test_missing_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but nobody listens
        monkeypatch.setenv("DRAGOMAN_PORT", str(unused.getsockname()[1]))
        result = run_command(capsys, "health")
    assert result.code == 1
    assert "Cannot reach a server" in result.err
