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
from tests.support.mcp_servers import answer_initialize, make_raw_app, serve_app

# what the names resolve to
ADDRESSES = {
    "example.com": ["93.184.216.34", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "localhost": ["127.0.0.1", "::1"],
    "inside.example": ["10.0.0.7"],
    "half.example": ["93.184.216.34", "192.168.1.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "ipv6.example": ["fd00::1"],
    "invalid.example": ["not an address"],
    "nothing.example": [],
    "metadata.google.internal": ["169.254.169.254"],
}


async def resolve(host: str, port: int) -> list[str]:
    if host not in ADDRESSES:
        raise socket.gaierror("no such name")
    return ADDRESSES[host]


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


# addresses that are not public, in all their spellings
LOOPBACK = [
    *("127.0.0.1", "127.0.0.2", "127.1", "127.0.1", "127.255.255.254", "0", "0.0.0.0", "0.0.0.1"),
    *("2130706433", "017700000001", "0x7f000001", "0x7f.0x0.0x0.0x1", "0177.0.0.1", "127.0.0.01"),
    *("0x7f.1", "0177.1", "127.0x1", "00.0.0.0", "0x0", "127.0.0.1.", "127.0.0.1..", "1.127.0.0.1"),
    *("0000000127.0.0.1", "127.000.000.001", "4294967297", "0x100000001", "127.0.0.256", "256.1"),
    *("127.0.0.1%00.example.com", "127.0.0.1%2eexample.com", "%31%32%37.0.0.1", "127。0。0。1"),
    *("①②⑦.⓪.⓪.①", "１２７.0.0.1", "127.0.0.1\u200b", "loca\u017fho\u017ft", "ⓛocalhost"),
    *("localhost", "LOCALHOST", "localhost.", "LocalHost", "a.localhost", "localhost.localdomain"),
]
PRIVATE = [
    *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.1"),
    *("169.254.169.254", "169.254.0.1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376"),
    *("100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("168.63.129.16", "metadata.google.internal", "inside.example", "half.example"),
    *("mapped.example", "ipv6.example", "invalid.example", "nothing.example", "unknown.example"),
]
FORBIDDEN_IPV6 = [
    *(
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
    ),
    *("[0:0:0:0:0:ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::1]"),
    *("[2002:7f00:1::]", "[2002:a00:1::1]", "[2001:0:7f00:1::]", "[fe80::1]", "[fe80::1%25eth0]"),
    *("[fe80::1%eth0]", "[fec0::1]", "[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[ff0e::1]"),
    *("[2001:db8::1]", "[100::1]", "[3fff::1]", "[::ffff:0:7f00:1]", "[1]", "[]", "[::1", "::1"),
    *("[127.0.0.1]", "[localhost]", "[::1].example.com", "[::ffff:169.254.169.254]"),
]
# rejected for their spelling, whatever their host
MALFORMED = [
    *("http://127.0.0.1@example.com/", "http://example.com@127.0.0.1/", "http://a:b@example.com/"),
    *("http://example.com\\@127.0.0.1/", "http://127.0.0.1\\@example.com/", "http://@127.0.0.1/"),
    *("http://example.com#@127.0.0.1/", "http://127.0.0.1#@example.com/", "http:///127.0.0.1/"),
    *("http:127.0.0.1", "http:/127.0.0.1/", "//127.0.0.1/", "127.0.0.1", "http:\\\\127.0.0.1\\"),
    *("file:///etc/passwd", "ftp://example.com/", "gopher://127.0.0.1:70/", "ws://example.com/"),
    *("javascript:alert(1)", "data:text/plain,x", "unix:///var/run/docker.sock", "dict://a:1/"),
    *("http+unix://%2Fvar%2Frun%2Fdocker.sock/", "jar:http://example.com!/", "httpx://a.example/"),
    *(
        "http://",
        "https://",
        "",
        "http://:80/",
        "http://example.com:0/",
        "http://example.com:65536/",
    ),
    *("http://example.com:99999999/", "http://example.com:80:80/", "http://example.com:8a/"),
    *("http://exa mple.com/", "http://example.com /", " http://127.0.0.1/", "http://127.0.0.1\t/"),
    *("http://example.com\n127.0.0.1/", "http://exa\x00mple.com/", "http://127.0.0.1\r\nHost: a/"),
    *("http://münchen.example/", "http://example.com/ü", "http://-a.example/", "http://a..b/"),
    *("http://*.example.com/", "http://example.com,127.0.0.1/", "http://example.com;127.0.0.1/"),
    *("http://" + "a" * 300 + ".example/", "http://{}/", "http://$(hostname)/", "http://a|b/"),
]


def list_forbidden_urls(port: int) -> list[str]:
    """URLs that must be rejected; most of them lead to a port of this machine."""
    hosts = [*LOOPBACK, *PRIVATE, *FORBIDDEN_IPV6]
    with_port = [f"http://{host}:{port}/mcp" for host in hosts]
    return [*with_port, *(f"https://{host}/" for host in hosts), *MALFORMED, *add_port(port)]


def add_port(port: int) -> list[str]:
    return [
        url.replace("127.0.0.1", f"127.0.0.1:{port}", 1) for url in MALFORMED if "127.0.0.1" in url
    ]


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
    assert message == "The server redirects to another server, which is not followed."


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
