"""URLs are fetched from hosts that the operator allows, and from no other address."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Iterator

import httpx2
import pytest

from dragoman.mcp.url_guard import UrlRejected, parse_endpoint
from dragoman.media import fetch
from dragoman.media.errors import MediaError
from dragoman.media.fetch import MediaFetcher
from tests.support.file_server import Answers, FileAnswer, serve_files
from tests.support.forbidden_port import watch_port
from tests.support.forbidden_urls import list_forbidden_urls, resolve

PRIVATE = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "172.16.0.1", "100.64.0.1"]
PRIVATE += ["::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "0.0.0.0", "::"]
PRIVATE += ["224.0.0.1", "ff02::1", "255.255.255.255", "2002:7f00:1::", "198.18.0.1", "192.0.0.8"]
PUBLIC = "93.184.216.34"
LIMIT = 1000


async def try_fetch(fetcher: MediaFetcher, url: str) -> bytes | str:
    """Return what is fetched, or the problem."""
    try:
        return (await fetcher.fetch(url, LIMIT))[0]
    except MediaError as error:
        return error.problem


async def fetch_with(fetcher: MediaFetcher, url: str) -> bytes | str:
    try:
        return await try_fetch(fetcher, url)
    finally:
        await fetcher.aclose()


def fetch_all(answers: Answers, paths: Iterable[str]) -> list[bytes | str]:
    """Fetch paths of a server of files."""

    async def fetch_paths(host: str) -> list[bytes | str]:
        fetcher = MediaFetcher([host], allow_http=True)
        results = [await try_fetch(fetcher, f"http://{host}{path}") for path in paths]
        await fetcher.aclose()
        return results

    with serve_files(answers) as files:
        return asyncio.run(fetch_paths(files.host))


def fetch_from(answers: Answers, path: str = "/a") -> bytes | str:
    return fetch_all(answers, [path])[0]


def test_an_allowed_url_is_fetched_without_credentials() -> None:
    with serve_files({"/a": FileAnswer(b"hello", headers={"set-cookie": "a=b"})}) as files:
        fetcher = MediaFetcher([files.host], allow_http=True)
        for _ in range(2):
            result = asyncio.run(fetch_with(fetcher, f"http://{files.host}/a?b=c#d"))
            assert result == b"hello"
        for request in files.log.requests:
            assert request["host"] == files.host
            assert request["accept-encoding"] == "identity"
            assert not {"cookie", "authorization", "referer", "x-api-key"} & set(request)


@pytest.mark.parametrize(
    ("allowed", "url"),
    [
        ((), "https://ok.example/a"),
        (("ok.example",), "https://other.example/a"),
        (("ok.example",), "https://sub.ok.example/a"),
        (("ok.example",), "https://ok.example.evil.example/a"),
        (("ok.example",), "https://ok.example:8443/a"),
        (("ok.example",), "http://ok.example/a"),
        (("ok.example:8443",), "https://ok.example/a"),
        (("ok.example",), "ftp://ok.example/a"),
        (("ok.example",), "//ok.example/a"),
        (("ok.example",), "https://ok.example@evil.example/"),
        (("ok.example",), "https://evil.example\\@ok.example/"),
        (("ok.example",), "https://ok.example\\@evil.example/"),
        (("ok.example",), "https://ok.example /a"),
        (("ok.example",), "https://user:password@ok.example/a"),
        (("ok.example",), "https://ok.example%00.evil.example/"),
        (("ok.example",), "https://ｏk.example/"),
        (("ok.example",), "https://ok.example./"),
        (("ok.example",), "https://ok.example/" + "a" * 9000),
        (("127.0.0.1",), "https://0x7f.1/"),
        (("127.0.0.1",), "https://2130706433/"),
        (("127.0.0.1",), "https://127.1/"),
        (("127.0.0.1",), "https://0177.0.0.1/"),
    ],
)
def test_other_urls_are_rejected_before_a_name_is_resolved(
    allowed: tuple[str, ...], url: str
) -> None:
    async def fail(host: str, port: int) -> list[str]:
        raise AssertionError(host)

    assert asyncio.run(fetch_with(MediaFetcher(allowed, resolve=fail), url)) == "url"


def list_names(urls: list[str]) -> Iterator[str]:
    """Yield the hosts of URLs that are names, in canonical form."""
    for url in urls:
        try:
            host = parse_endpoint(url).host
        except UrlRejected:
            continue
        if not host.replace(".", "").isdigit() and ":" not in host:
            yield host


def test_no_spelling_of_an_internal_host_is_connected_to() -> None:
    """All names are allowed, whatever they are; their addresses are not."""

    async def check_all(urls: list[str]) -> None:
        names = set(list_names(urls))
        ports = {f"{name}:{port}" for name in names}
        fetcher = MediaFetcher(names | ports, allow_http=True, resolve=resolve)
        for url in urls:
            assert await fetch_with(fetcher, url) in ("url", "download"), url

    with watch_port() as (port, connections):
        urls = list_forbidden_urls(port)
        asyncio.run(check_all(urls))
        assert len(urls) > 200
        assert not connections


class FakeTransport:
    """Records where requests go, and answers none of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[httpx2.Request] = []

        async def handle(_: object, request: httpx2.Request) -> httpx2.Response:
            self.requests.append(request)
            raise httpx2.ConnectError("no")

        monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", handle)

    @property
    def hosts(self) -> set[str]:
        return {request.url.host for request in self.requests}


def fetch_name(answers: Iterable[list[str]], allowed: tuple[str, ...] = ()) -> set[bytes | str]:
    """Fetch from a name as often as its resolver answers; each fetch asks it once."""

    async def fetch_often() -> set[bytes | str]:
        tries = list(answers)
        remaining = iter(tries)

        async def look_up(host: str, port: int) -> list[str]:
            return next(remaining)

        fetcher = MediaFetcher(("ok.example", *allowed), resolve=look_up)
        results = set()
        for _ in tries:
            results.add(await try_fetch(fetcher, "https://ok.example/a"))
        await fetcher.aclose()
        return results

    return asyncio.run(fetch_often())


def test_a_private_address_of_an_allowed_name_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = FakeTransport(monkeypatch)
    mixed = [([a], [PUBLIC, a], [a, PUBLIC]) for a in PRIVATE]
    assert fetch_name(itertools.chain(*mixed)) == {"download"}
    assert not transport.requests
    assert fetch_name([["10.1.2.3"]], ("10.1.2.3",)) == {"download"}
    assert transport.hosts == {"10.1.2.3"}


def test_rebinding_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name changes at every lookup; one lookup decides, and the name stays in the headers."""
    transport = FakeTransport(monkeypatch)
    answers = itertools.cycle([[PUBLIC], *([address] for address in PRIVATE)])
    assert fetch_name(itertools.islice(answers, 1000)) == {"download"}
    assert len(transport.requests) == 1000 // (len(PRIVATE) + 1)
    assert transport.hosts == {PUBLIC}
    for request in transport.requests:
        assert request.headers["host"] == "ok.example"
        assert request.extensions["sni_hostname"] == "ok.example"


REDIRECTS = (301, 302, 303, 307, 308)


@pytest.mark.parametrize("status", REDIRECTS)
def test_redirects_are_checked_like_the_first_url(status: int) -> None:
    with watch_port() as (port, connections):
        targets = [f"http://127.0.0.1:{port}/", f"//localhost:{port}/", f"http://[::1]:{port}/"]
        targets += ["file:///etc/passwd", "https://evil.example/", "\\\\evil", "http://a\\@b", ""]
        answers = {
            f"/{index}": FileAnswer(status=status, headers={"location": target})
            for index, target in enumerate(targets)
        }
        assert set(fetch_all(answers, answers)) == {"download"}
        assert not connections
    hop = FileAnswer(status=status, headers={"location": "/b"})
    assert fetch_from({"/a": hop, "/b": FileAnswer(b"hello")}) == b"hello"


@pytest.mark.parametrize(("hops", "expected"), [(3, b"hello"), (4, "download")])
def test_the_number_of_redirects_is_limited(hops: int, expected: bytes | str) -> None:
    answers = {
        f"/{number}": FileAnswer(status=302, headers={"location": f"/{number + 1}"})
        for number in range(hops)
    }
    answers[f"/{hops}"] = FileAnswer(b"hello")
    assert fetch_from(answers, "/0") == expected


@pytest.mark.parametrize("status", [204, 206, 400, 401, 404, 500])
def test_only_a_success_is_read(status: int) -> None:
    assert (
        fetch_from({"/a": FileAnswer(b"" if status == 204 else b"x", status=status)}) == "download"
    )


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "GZIP", "gzip, gzip"])
def test_a_compressed_body_is_rejected(encoding: str) -> None:
    headers = {"content-encoding": encoding}
    assert fetch_from({"/a": FileAnswer(b"x", headers=headers)}) == "download"


def test_reading_stops_at_the_limit() -> None:
    assert fetch_from({"/a": FileAnswer(bytes(LIMIT))}) == bytes(LIMIT)
    assert fetch_from({"/a": FileAnswer(bytes(LIMIT + 1))}) == "file_too_large"
    assert fetch_from({"/a": FileAnswer(bytes(64), chunks=True)}) == "file_too_large"


def test_a_fetch_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "TOTAL_TIMEOUT", 0.2)
    assert fetch_from({"/a": FileAnswer(b"", chunks=True)}) == "download"


@pytest.mark.parametrize("host", ["a b", "https://a.example", "a.example/b", "", "a:99999", "*"])
def test_an_invalid_host_is_an_error_of_the_operator(host: str) -> None:
    with pytest.raises(UrlRejected, match="is not HOST or HOST:PORT"):
        MediaFetcher([host])
