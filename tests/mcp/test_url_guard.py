"""Where a request may have the server go: to public hosts, plainly written, and nowhere else."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
from tests.support.mcp_servers import make_raw_app, answer_initialize, serve_app

# names that mean something else to whoever looks them up
ADDRESSES = {
    "example.com": ["93.184.216.34", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"],
    "localhost": ["127.0.0.1", "::1"],
    "inside.example": ["10.0.0.7"],
    "half.example": ["93.184.216.34", "192.168.1.1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "six.example": ["fd00::1"],
    "odd.example": ["not an address"],
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
def test_public_hosts_may_be_named(url: str) -> None:
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
    *("mapped.example", "six.example", "odd.example", "nothing.example", "unknown.example"),
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
# not for what they name, but for how
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
    """Ways to say what may not be said; most of them lead to a port of this machine."""
    hosts = [*LOOPBACK, *PRIVATE, *FORBIDDEN_IPV6]
    plain = [f"http://{host}:{port}/mcp" for host in hosts]
    return [*plain, *(f"https://{host}/" for host in hosts), *MALFORMED, *add_port(port)]


def add_port(port: int) -> list[str]:
    return [url.replace("127.0.0.1", f"127.0.0.1:{port}", 1) for url in MALFORMED if "127.0.0.1" in url]


@contextmanager
def watch_port() -> Iterator[tuple[int, list[bytes]]]:
    """A port on all addresses of this machine; whoever comes is written down."""
    came: list[bytes] = []
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)

    def watch() -> None:
        while True:
            try:
                connection, where = listener.accept()
            except OSError:
                return
            came.append(str(where).encode())
            connection.close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield listener.getsockname()[1], came
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


async def get_rejection(tools: McpClient, url: str) -> str:
    server = McpServer(label="a", url=url)
    with pytest.raises(ToolsUnavailable) as error:
        await tools.list_tools(server)
    outcome = await tools.call_tool(server, "a", {}, 100)
    assert outcome.error == str(error.value), url
    await tools.aclose()
    return str(error.value)


def test_no_spelling_leads_inside() -> None:
    async def all_of_them(port: int) -> None:
        for url in list_forbidden_urls(port):
            said = await get_rejection(McpClient(UrlGuard(resolve=resolve), 20.0), url)
            assert said.startswith(("The address must", "The port of", "The host of", "`")), (
                url,
                said,
            )
            for secret in ("10.0.0.7", "192.168.1.1", "fd00::1", "Error", "Traceback"):
                assert secret not in said or secret in url

    with watch_port() as (port, came):
        assert len(list_forbidden_urls(port)) > 200
        asyncio.run(all_of_them(port))
        assert came == []
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            assert one.recv(1) == b""  # it does watch, and has seen this before it hung up
    assert len(came) == 1


def test_whether_a_name_is_known_inside_is_not_told() -> None:
    async def said(url: str) -> str:
        with pytest.raises(UrlRejected) as error:
            await UrlGuard(resolve=resolve).resolve(parse_endpoint(url))
        return str(error.value).replace(url, "")

    inside, nowhere = (
        asyncio.run(said(f"http://{name}.example/")) for name in ("inside", "unknown")
    )
    assert inside.replace("inside", "unknown") == nowhere


@pytest.mark.parametrize("first", [["93.184.216.34"], ["93.184.216.34", "1.1.1.1"], ["127.0.0.1"]])
def test_a_name_that_changes_its_meaning_gains_nothing(
    monkeypatch: pytest.MonkeyPatch, first: list[str]
) -> None:
    """After its first answer a name means this machine: only what was looked at is connected to."""
    went: list[str] = []

    async def nowhere(_: object, request: httpx2.Request) -> httpx2.Response:
        went.append(request.url.host)
        assert request.headers["host"] == "rebind.example"
        assert request.extensions["sni_hostname"] == "rebind.example"
        raise httpx2.ConnectError("no")

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", nowhere)
    for _ in range(50):
        answers = itertools.chain([first], itertools.repeat(["127.0.0.1"]))

        async def turning(host: str, port: int, answers: Iterator[Any] = answers) -> Any:
            return next(answers)

        tools = McpClient(UrlGuard(resolve=turning), 20.0)
        asyncio.run(check_fails(tools, "https://rebind.example/mcp"))
    assert set(went) == {address for address in first if is_public(address)}


async def check_fails(tools: McpClient, url: str) -> None:
    with pytest.raises(ToolsUnavailable):
        await tools.list_tools(McpServer(label="a", url=url))
    await tools.aclose()


def test_the_connection_goes_to_the_address_that_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One look-up is one connection's; the name goes with it."""
    asked: list[str] = []

    async def once(host: str, port: int) -> list[str]:
        asked.append(host)
        assert len(asked) == 1, "it was looked up again"
        return ["127.0.0.1"]

    monkeypatch.setattr("dragoman.mcp.url_guard.public", lambda address: True)
    with serve_app(make_raw_app(answer_initialize)) as server:
        port = server.host.rpartition(":")[2]
        tools = McpClient(UrlGuard(resolve=once), 20.0)
        asyncio.run(check_fails(tools, f"http://tools.example:{port}/mcp"))
    assert {request["host"] for request in server.log.requests} == {f"tools.example:{port}"}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with it")
@pytest.mark.parametrize(("name", "fits"), [("tools.example", True), ("other.example", False)])
def test_a_certificate_is_held_against_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, fits: bool
) -> None:
    """The connection goes to an address; TLS still checks who is there."""
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

    async def here(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    trust = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr("dragoman.mcp.transport._TRUST", trust)
    monkeypatch.setattr("dragoman.mcp.url_guard.public", lambda address: True)
    secure: dict[str, Any] = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    with serve_app(make_raw_app(answer_initialize), **secure) as server:
        port = server.host.rpartition(":")[2]
        asyncio.run(
            check_fails(McpClient(UrlGuard(resolve=here), 20.0), f"https://{name}:{port}/mcp")
        )
    assert bool(server.log.requests) == fits


def test_an_international_name_is_looked_up_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    went: list[tuple[str, str]] = []

    async def nowhere(_: object, request: httpx2.Request) -> httpx2.Response:
        went.append((request.url.host, request.extensions["sni_hostname"]))
        raise httpx2.ConnectError("no")

    async def found(host: str, port: int) -> list[str]:
        assert host == "xn--mnchen-3ya.example"
        return ["93.184.216.34"]

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", nowhere)
    url = "https://xn--mnchen-3ya.example/mcp"
    asyncio.run(check_fails(McpClient(UrlGuard(resolve=found), 20.0), url))
    assert set(went) == {("93.184.216.34", "xn--mnchen-3ya.example")}


@pytest.mark.parametrize(
    "url", ["https://TOKEN@example.com/mcp", "https://a:TOKEN@example.com/", "https://TOKEN%40a/"]
)
def test_an_address_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(UrlRejected) as error:
        parse_endpoint(url)
    assert "TOKEN" not in str(error.value)


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize("onward", ["https://other.example/TOKEN", "http://[TOKEN", "//TOKEN/a"])
def test_where_a_redirect_leads_is_not_told(status: int, onward: str) -> None:
    away = {"location": onward, "content-type": "text/plain"}
    with serve_app(make_raw_app(lambda _: b"", status=status, headers=away)) as server:
        said = asyncio.run(get_rejection(McpClient(UrlGuard([server.host]), 20.0), server.url))
    assert said == "The server redirects elsewhere, which is not followed."


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_lead_nowhere_else(status: int) -> None:
    with watch_port() as (port, came):
        away = {"location": f"http://127.0.0.1:{port}/", "content-type": "text/plain"}
        with serve_app(make_raw_app(lambda _: b"", status=status, headers=away)) as server:
            tools = McpClient(UrlGuard([server.host]), 20.0)
            asyncio.run(check_fails(tools, server.url))
            assert server.log.requests
        assert came == []


@pytest.mark.parametrize(
    ("allowed", "url", "may"),
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
def test_an_operator_allows_hosts(allowed: str, url: str, may: bool) -> None:
    places = UrlGuard([allowed], resolve)
    if may:
        assert asyncio.run(places.resolve(parse_endpoint(url)))
        return
    with pytest.raises(UrlRejected):
        asyncio.run(places.resolve(parse_endpoint(url)))


@pytest.mark.parametrize("said", ["", "a b", "host:", "host:0", "host:x", "http://a", "a/b", "[x]"])
def test_what_is_no_host_cannot_be_allowed(said: str) -> None:
    with pytest.raises(UrlRejected):
        parse_allowed_host(said)


def test_a_place_is_read_once() -> None:
    assert parse_endpoint("HTTPS://Example.com/a") == Endpoint("example.com", 443)
    assert parse_endpoint("http://[2606:4700:0::1]:81") == Endpoint("2606:4700::1", 81)
    assert is_public("93.184.216.34")
    assert not is_public("10.0.0.1")
