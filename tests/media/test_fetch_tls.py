"""Media are fetched over TLS from servers with a valid certificate, and from no others."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from dragoman.media import fetch
from dragoman.media.errors import MediaError
from dragoman.media.fetch import MediaFetcher
from tests.support.certificates import Authority
from tests.support.file_server import FileAnswer, serve_files
from tests.support.forbidden_port import watch_port
from tests.support.mcp_servers import LocalServer

BOMB = gzip.compress(bytes(10 << 20))
LIMIT = 100_000


class Servers(Struct):
    """Servers of the same files whose certificates differ."""

    valid: LocalServer
    expired: LocalServer
    trusted: Path  # the authority of both
    other: Path  # another authority
    private_port: int


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("certificates")
    authority = Authority(directory)
    files = authority.issue("valid"), authority.issue("expired", days=-1)
    valid, expired = ({"ssl_certfile": cert, "ssl_keyfile": key} for cert, key in files)
    with watch_port() as (port, connections):
        answers = {
            "/a": FileAnswer(b"hello"),
            "/private": FileAnswer(status=302, headers={"location": f"https://127.0.0.1:{port}/"}),
            "/internal": FileAnswer(status=302, headers={"location": "https://10.0.0.1/"}),
            "/bomb": FileAnswer(BOMB, headers={"content-encoding": "gzip"}),
            "/packed": FileAnswer(BOMB),
            "/endless": FileAnswer(bytes(64), chunks=True),
            "/slow": FileAnswer(b"", chunks=True),
        }
        with serve_files(answers, **valid) as first, serve_files(answers, **expired) as second:
            plain = f"http://localhost:{get_port(first)}/a"
            answers["/plain"] = FileAnswer(status=302, headers={"location": plain})
            other = Authority(directory, "other").file
            yield Servers(first, second, authority.file, other, port)
        assert not connections


def get_port(server: LocalServer) -> str:
    return server.host.partition(":")[2]


def fetch_url(url: str, *hosts: str) -> bytes | str:
    """Return what is fetched, or the problem; every name is this machine."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async def run() -> bytes | str:
        fetcher = MediaFetcher(("127.0.0.1", *hosts), resolve=resolve)
        try:
            return (await fetcher.fetch(url, LIMIT))[0]
        except MediaError as error:
            return error.problem
        finally:
            await fetcher.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("localhost", "/a", b"hello"),
        ("127.0.0.1", "/a", b"hello"),
        ("other.test", "/a", "download"),  # the certificate has another name
        ("localhost", "/private", "download"),
        ("localhost", "/internal", "download"),
        ("localhost", "/plain", "download"),  # a redirect to HTTP
        ("localhost", "/bomb", "download"),
        ("localhost", "/packed", BOMB),  # what is not declared as compressed stays as it is
        ("localhost", "/endless", "file_too_large"),
        ("localhost", "/missing", "download"),
    ],
)
def test_certificates_redirects_and_bodies_are_checked(
    servers: Servers,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    path: str,
    expected: bytes | str,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(servers.trusted))
    place = f"{host}:{get_port(servers.valid)}"
    assert fetch_url(f"https://{place}{path}", place) == expected


def test_expired_certificate_is_rejected(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(servers.trusted))
    place = f"localhost:{get_port(servers.expired)}"
    assert fetch_url(f"https://{place}/a", place) == "download"


@pytest.mark.parametrize("is_set", [True, False])
def test_unknown_authority_is_rejected(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, is_set: bool
) -> None:
    if is_set:
        monkeypatch.setenv("SSL_CERT_FILE", str(servers.other))
    place = f"localhost:{get_port(servers.valid)}"
    assert fetch_url(f"https://{place}/a", place) == "download"


def test_slow_body_ends_at_the_time_limit(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(servers.trusted))
    monkeypatch.setattr(fetch, "TOTAL_TIMEOUT", 0.5)
    place = f"localhost:{get_port(servers.valid)}"
    assert fetch_url(f"https://{place}/slow", place) == "download"
