"""Services on other machines that fail (faults 34 to 40).

The services that a request may need are MCP servers; the hub is needed to download models only.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.testing import ScriptedEngine
from tests.responses.remote_tools import SCRIPT, THINKER
from tests.support.certificates import Authority
from tests.support.fault_clients import make_body
from tests.support.fault_proxy import Fault, run_proxy
from tests.support.hostile_http import HostileServer, check_no_leaks, serve_hostile
from tests.support.loopback_services import serve_hub
from tests.support.mcp_servers import (
    LocalServer,
    answer_initialize,
    make_raw_app,
    serve_app,
    serve_tools,
)
from tests.support.model_files import make_gguf
from tests.support.server_process import DRAGOMAN

pytestmark = pytest.mark.slow
TIMEOUT = 0.6  # seconds for an MCP server to answer
PATH = "/v1/responses"
KEY = "Bearer secret-of-the-tool-server"
TOOL = {"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}


@contextmanager
def serve_with_hosts(*hosts: str) -> Iterator[HostileServer]:
    """Serve a model that calls tools, which may be on these hosts."""
    with serve_hostile(
        ScriptedEngine(SCRIPT, tokens=True),
        mcp_hosts=hosts,
        mcp_timeout=TIMEOUT,
        chat_template=str(THINKER),
    ) as server:
        yield server


def ask(server: HostileServer, url: str, text: str = "Hi", **fields: Any) -> Any:
    """Ask for an answer with the tools of a server; the answer must come, and in time."""
    tool: Any = {"type": "mcp", "server_label": "calc", "server_url": url}
    tool |= {"require_approval": "never", "headers": {"authorization": KEY}}
    started_at = time.monotonic()
    response = server.send("POST", PATH, json=make_body(PATH, text, tools=[tool], **fields))
    assert time.monotonic() - started_at < 20 * TIMEOUT
    assert response.status_code == 200, response.text
    assert "secret-of" not in response.text
    check_no_leaks(response.text)
    return response.json()


def find_item(response: Any, kind: str) -> Any:
    return next(item for item in response["output"] if item["type"] == kind)


def check_listing_error(response: Any) -> None:
    """The tools could not be listed; the answer came without them."""
    assert find_item(response, "mcp_list_tools")["error"]
    assert find_item(response, "message")["content"][0]["text"] == "Hello there!"


def get_port(host: str) -> int:
    return int(host.rpartition(":")[2])


@contextmanager
def listen_silently() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_fault_34_unreachable_server() -> None:
    with serve_tools() as stopped:
        host = stopped.host
    with serve_with_hosts(host) as server:
        check_listing_error(ask(server, f"http://{host}/mcp"))


def test_fault_34_server_that_never_answers() -> None:
    with listen_silently() as host, serve_with_hosts(host) as server:
        check_listing_error(ask(server, f"http://{host}/mcp"))


def test_fault_34_server_with_an_untrusted_certificate(tmp_path: Path) -> None:
    files = Authority(tmp_path).issue("server")
    options: Any = {"ssl_certfile": str(files.cert), "ssl_keyfile": str(files.key)}
    with (
        serve_app(make_raw_app(answer_initialize), **options) as upstream,
        serve_with_hosts(upstream.host) as server,
    ):
        check_listing_error(ask(server, f"https://{upstream.host}/mcp"))
        assert upstream.log.requests == []  # nothing was sent, the key least of all


def test_fault_34_server_that_speaks_no_tls() -> None:
    with serve_tools() as tools, serve_with_hosts(tools.host) as server:
        check_listing_error(ask(server, f"https://{tools.host}/mcp"))
        assert tools.log.requests == []


def test_fault_35_storm_of_errors_ends_with_the_storm(count_cases: Callable[[int], None]) -> None:
    """Each request is answered without the tools; the first one after the storm has them."""
    storm, count = {"rages": True}, 20

    def answer(message: dict[str, Any]) -> Any:
        if storm["rages"]:
            return b"down for maintenance"
        if message["method"] == "tools/list":
            return {"tools": [TOOL]}
        return answer_initialize(message)

    app = make_raw_app(answer, status=503, headers={"content-type": "text/plain"})
    with serve_app(app) as upstream, serve_with_hosts(upstream.host) as server:
        for _ in range(count):
            check_listing_error(ask(server, upstream.url))
        storm["rages"] = False
        listed = find_item(ask(server, upstream.url), "mcp_list_tools")
        assert [tool["name"] for tool in listed["tools"]] == ["add"]
    count_cases(count)


@contextmanager
def serve_through_proxy(
    fault: Fault, passed: int
) -> Iterator[tuple[HostileServer, LocalServer, str]]:
    """A tool server behind a proxy that damages its answers to calls."""
    with serve_tools() as tools, ExitStack() as stack:
        proxy = stack.enter_context(run_proxy(get_port(tools.host), fault, b'"tools/call"', passed))
        server = stack.enter_context(serve_with_hosts(proxy.host))
        yield server, tools, f"http://{proxy.host}/mcp"


@pytest.mark.parametrize("passed", [0, 30, 200], ids=["status", "headers", "body"])
def test_fault_36_cut_answer_is_an_error_and_no_result(passed: int) -> None:
    with serve_through_proxy("cut", passed) as (server, tools, url):
        call = find_item(ask(server, url, "Add them."), "mcp_call")
        assert call["error"]
        assert not call["output"]
        assert tools.log.calls == ["add 2 3"]


@pytest.mark.parametrize(
    ("fault", "passed"), [("reset", 200), ("stall", 0), ("stall", 200), ("drip", 0), ("garbage", 0)]
)
def test_fault_37_garbled_and_slow_answers_are_errors_in_time(fault: Fault, passed: int) -> None:
    with serve_through_proxy(fault, passed) as (server, _, url):
        call = find_item(ask(server, url, "Add them."), "mcp_call")
        assert call["error"]
        assert not call["output"]
        assert server.send("GET", "/health/ready").status_code == 200


@pytest.mark.parametrize("status", [302, 307, 308])
def test_fault_38_redirects_are_not_followed(status: int) -> None:
    with serve_tools() as other:
        headers = {"location": other.url, "content-type": "text/plain"}
        app = make_raw_app(lambda _: b"elsewhere", status=status, headers=headers)
        with serve_app(app) as upstream, serve_with_hosts(upstream.host, other.host) as server:
            check_listing_error(ask(server, upstream.url))
            assert upstream.log.requests[0]["authorization"] == KEY
            assert other.log.requests == []


@pytest.mark.parametrize("fault", ["cut", "reset", "stall"])
def test_fault_39_call_that_may_have_run_is_not_repeated(
    fault: Fault, count_cases: Callable[[int], None]
) -> None:
    """The answer is lost after the tool has run: one more try would run it twice."""
    count = 2 if fault == "stall" else 4
    with serve_through_proxy(fault, 0) as (server, tools, url):
        for _ in range(count):
            assert find_item(ask(server, url, "Add them."), "mcp_call")["error"]
        assert len(tools.log.calls) == count
    count_cases(count)


UNREACHABLE = {
    "refused": {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
    "no DNS": {"HF_ENDPOINT": "http://hub.invalid", "PIP_INDEX_URL": "http://index.invalid/simple"},
}


def make_environment(home: Path, **variables: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**known, "HF_HOME": str(home / "hf"), **variables}


def test_fault_40_downloaded_model_needs_no_hub(tmp_path: Path) -> None:
    """A model that was pulled is found again; only pulling another one needs the hub."""
    models = ["--models-dir", str(tmp_path / "models")]

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DRAGOMAN, *arguments, *models],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env=make_environment(tmp_path, **variables),
        )

    with serve_hub({"m.Q4_K_M.gguf": make_gguf(1, {})}) as hub:
        assert run("pull", "owner/repo", **hub).returncode == 0
    listed = run("list", **UNREACHABLE["no DNS"])
    assert listed.returncode == 0
    assert "Q4_K_M" in listed.stdout
    other = run("pull", "owner/other", **UNREACHABLE["refused"])
    assert other.returncode == 1
    assert len(other.stderr.splitlines()) == 1
    assert "cannot be reached" in other.stderr


@pytest.mark.real_model
def test_fault_40_default_model_is_served_without_a_network(
    default_model: Path, tmp_path: Path
) -> None:
    command = [*DRAGOMAN, "serve", "--port", "0", "--context", "512", "--threads", "1"]
    command += ["--models-dir", str(default_model.parent.parent), "--store", "sqlite://"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=make_environment(tmp_path, **UNREACHABLE["no DNS"]),
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[2]
            assert process.stdout.readline().startswith("Serving ")
            body = make_body("/v1/completions") | {"model": "smollm2-135m", "max_tokens": 2}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        finally:
            process.kill()
