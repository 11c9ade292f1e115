"""`dragoman health` exits with 0 only if the server is ready."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.support.command_line import run_command
from tests.support.serving import RunningServer, serve_scripted
from tests.support.upstream_servers import run_table


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


def test_another_program(capsys: pytest.CaptureFixture[str]) -> None:
    with run_table({}) as other:
        result = run_command(capsys, "health", "--url", other.url)
    assert result.code == 1
    assert result.err == f"dragoman: The server at {other.url} is not a dragoman server.\n"


@pytest.mark.parametrize("command", ["health", "ps"])
def test_https_for_a_server_without_tls(
    server: RunningServer, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    url = server.url.replace("http:", "https:")
    result = run_command(capsys, command, "--url", url)
    assert result.code == 1
    assert f"{url} does not speak TLS; its address may begin with http://." in result.err


def test_missing_and_wrong_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """The advice is about the command, not about requests."""
    with serve_scripted(api_key=["right"]) as server:
        missing = run_command(capsys, "ps", "--url", server.url)
        wrong = run_command(capsys, "ps", "--url", server.url, "--api-key", "wrong")
        admin = run_command(capsys, "stop", "scripted", "--url", server.url, "--api-key", "right")
    advice = "Set it with --api-key or DRAGOMAN_API_KEY.\n"
    assert missing.err.endswith(f"dragoman: Missing API key. {advice}")
    assert wrong.err.endswith(f"dragoman: Invalid API key. {advice}")
    assert "(POST /admin/" not in admin.err
    assert "Set it with --admin-key" in admin.err
