"""Requests can only make the server connect to public hosts, in canonical form."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.mcp.client import McpClient
from dragoman.mcp.types import McpServer, ToolsUnavailable
from dragoman.mcp.url_guard import (
    Endpoint,
    UrlGuard,
    UrlRejected,
    is_public,
    parse_allowed_host,
    parse_endpoint,
)
from tests.support.forbidden_port import watch_port
from tests.support.forbidden_urls import list_forbidden_urls, resolve
from tests.support.mcp_servers import answer_initialize, make_raw_app, serve_app

PUBLIC = [
    "https://example.com/mcp",
    "http://example.com:8080/a/b?c=d&e=%2F%40",
    "HTTPS://EXAMPLE.COM/mcp",
    "https://example.com?key=a@b",
    "https://93.184.216.34/",
    "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]:8443/mcp",
]


@pytest.mark.parametrize("url", PUBLIC)
def test_public_hosts_are_allowed(url: str) -> None:
    assert asyncio.run(UrlGuard(resolve=resolve).resolve(parse_endpoint(url)))


async def get_rejection(client: McpClient, url: str) -> str:
    server = McpServer(label="a", url=url)
    with pytest.raises(ToolsUnavailable) as error:
        await client.list_tools(server)
    result = await client.call_tool(server, "a", {}, 100)
    assert result.error == str(error.value), url
    await client.aclose()
    return str(error.value)


def test_no_spelling_of_an_internal_host_is_connected_to() -> None:
    async def check_all(port: int) -> None:
        for url in list_forbidden_urls(port):
            message = await get_rejection(McpClient(UrlGuard(resolve=resolve), 20.0), url)
            starts = ("The URL must", "The port of", "The host of", "`")
            assert message.startswith(starts), (url, message)
            for secret in ("10.0.0.7", "192.168.1.1", "fd00::1", "Error", "Traceback"):
                assert secret not in message or secret in url

    with watch_port() as (port, connections):
        assert len(list_forbidden_urls(port)) > 200
        asyncio.run(check_all(port))
        assert connections == []
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            assert connection.recv(1) == b""  # the port does accept, and has recorded this
    assert len(connections) == 1


def test_the_error_does_not_reveal_whether_a_name_exists() -> None:
    async def get_error(url: str) -> str:
        with pytest.raises(UrlRejected) as error:
            await UrlGuard(resolve=resolve).resolve(parse_endpoint(url))
        return str(error.value).replace(url, "")

    inside, unknown = (
        asyncio.run(get_error(f"http://{name}.example/")) for name in ("inside", "unknown")
    )
    assert inside.replace("inside", "unknown") == unknown


@pytest.mark.parametrize("first", [["93.184.216.34"], ["93.184.216.34", "1.1.1.1"], ["127.0.0.1"]])
def test_dns_rebinding_has_no_effect(monkeypatch: pytest.MonkeyPatch, first: list[str]) -> None:
    """From its second resolution on, a name is this machine: only checked addresses are used."""
    hosts: list[str] = []

    async def fail_to_connect(_: object, request: httpx2.Request) -> httpx2.Response:
        hosts.append(request.url.host)
        assert request.headers["host"] == "rebind.example"
        assert request.extensions["sni_hostname"] == "rebind.example"
        raise httpx2.ConnectError("no")

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", fail_to_connect)
    for _ in range(50):
        answers = itertools.chain([first], itertools.repeat(["127.0.0.1"]))

        async def resolve_next(host: str, port: int, answers: Iterator[Any] = answers) -> Any:
            return next(answers)

        client = McpClient(UrlGuard(resolve=resolve_next), 20.0)
        asyncio.run(check_fails(client, "https://rebind.example/mcp"))
    assert set(hosts) == {address for address in first if is_public(address)}


async def check_fails(client: McpClient, url: str) -> None:
    with pytest.raises(ToolsUnavailable):
        await client.list_tools(McpServer(label="a", url=url))
    await client.aclose()


def test_the_connection_goes_to_the_checked_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name is resolved once; the host header keeps it."""
    resolved: list[str] = []

    async def resolve_once(host: str, port: int) -> list[str]:
        resolved.append(host)
        assert len(resolved) == 1, "it was resolved again"
        return ["127.0.0.1"]

    monkeypatch.setattr("dragoman.mcp.url_guard.is_public", lambda address: True)
    with serve_app(make_raw_app(answer_initialize)) as server:
        port = server.host.rpartition(":")[2]
        client = McpClient(UrlGuard(resolve=resolve_once), 20.0)
        asyncio.run(check_fails(client, f"http://tools.example:{port}/mcp"))
    assert {request["host"] for request in server.log.requests} == {f"tools.example:{port}"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="creates the certificate")
@pytest.mark.parametrize(("name", "matches"), [("tools.example", True), ("other.example", False)])
def test_tls_checks_the_host_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, matches: bool
) -> None:
    """Although the connection goes to an address."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=DNS:tools.example"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )

    async def resolve_to_loopback(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    context = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr("dragoman.mcp.transport._SSL_CONTEXT", context)
    monkeypatch.setattr("dragoman.mcp.url_guard.is_public", lambda address: True)
    secure: dict[str, Any] = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    with serve_app(make_raw_app(answer_initialize), **secure) as server:
        port = server.host.rpartition(":")[2]
        asyncio.run(
            check_fails(
                McpClient(UrlGuard(resolve=resolve_to_loopback), 20.0), f"https://{name}:{port}/mcp"
            )
        )
    assert bool(server.log.requests) == matches


def test_an_international_name_is_resolved_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts: list[tuple[str, str]] = []

    async def fail_to_connect(_: object, request: httpx2.Request) -> httpx2.Response:
        hosts.append((request.url.host, request.extensions["sni_hostname"]))
        raise httpx2.ConnectError("no")

    async def resolve_name(host: str, port: int) -> list[str]:
        assert host == "xn--mnchen-3ya.example"
        return ["93.184.216.34"]

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", fail_to_connect)
    url = "https://xn--mnchen-3ya.example/mcp"
    asyncio.run(check_fails(McpClient(UrlGuard(resolve=resolve_name), 20.0), url))
    assert set(hosts) == {("93.184.216.34", "xn--mnchen-3ya.example")}


@pytest.mark.parametrize(
    "url", ["https://TOKEN@example.com/mcp", "https://a:TOKEN@example.com/", "https://TOKEN%40a/"]
)
def test_the_error_does_not_contain_secrets_of_the_url(url: str) -> None:
    with pytest.raises(UrlRejected) as error:
        parse_endpoint(url)
    assert "TOKEN" not in str(error.value)


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("target", ["https://other.example/TOKEN", "http://[TOKEN", "//TOKEN/a"])
def test_the_error_does_not_contain_the_target_of_a_redirect(status: int, target: str) -> None:
    headers = {"location": target, "content-type": "text/plain"}
    with serve_app(make_raw_app(lambda _: b"", status=status, headers=headers)) as server:
        message = asyncio.run(get_rejection(McpClient(UrlGuard([server.host]), 20.0), server.url))
    assert message == "The server redirects to another server; redirects are not followed."


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_to_another_server_are_not_followed(status: int) -> None:
    with watch_port() as (port, connections):
        headers = {"location": f"http://127.0.0.1:{port}/", "content-type": "text/plain"}
        with serve_app(make_raw_app(lambda _: b"", status=status, headers=headers)) as server:
            client = McpClient(UrlGuard([server.host]), 20.0)
            asyncio.run(check_fails(client, server.url))
            assert server.log.requests
        assert connections == []


@pytest.mark.parametrize(
    ("allowed", "url", "is_allowed"),
    [
        ("127.0.0.1:9000", "http://127.0.0.1:9000/", True),
        ("127.0.0.1:9000", "http://127.0.0.1:9001/", False),
        ("127.0.0.1:9000", "http://0x7f000001:9000/", False),
        ("127.0.0.1:9000", "http://localhost:9000/", False),
        ("127.0.0.1", "http://127.0.0.1/", True),
        ("127.0.0.1", "http://127.0.0.1:1/", True),
        ("tools.lan", "https://tools.lan/mcp", True),
        ("Tools.LAN:443", "https://tools.lan/mcp", True),
        ("tools.lan:443", "http://tools.lan/mcp", False),
        ("tools.lan", "http://a.tools.lan/", False),
        ("tools.lan", "http://tools.lan@10.0.0.1/", False),
        ("[::1]:9000", "http://[::1]:9000/", True),
        ("::1", "http://[0:0::1]/", True),
        ("[fd00::1]", "http://[fd00::1]:80/", True),
    ],
)
def test_an_operator_can_allow_hosts(allowed: str, url: str, is_allowed: bool) -> None:
    guard = UrlGuard([allowed], resolve)
    if is_allowed:
        assert asyncio.run(guard.resolve(parse_endpoint(url)))
        return
    with pytest.raises(UrlRejected):
        asyncio.run(guard.resolve(parse_endpoint(url)))


@pytest.mark.parametrize("text", ["", "a b", "host:", "host:0", "host:x", "http://a", "a/b", "[x]"])
def test_allowed_hosts_must_be_valid(text: str) -> None:
    with pytest.raises(UrlRejected):
        parse_allowed_host(text)


def test_endpoints_are_normalised() -> None:
    assert parse_endpoint("HTTPS://Example.com/a") == Endpoint("example.com", 443)
    assert parse_endpoint("http://[2606:4700:0::1]:81") == Endpoint("2606:4700::1", 81)
    assert is_public("93.184.216.34")
    assert not is_public("10.0.0.1")
