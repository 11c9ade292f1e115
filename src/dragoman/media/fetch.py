"""Fetches what the URL of a media part refers to. No other module fetches for a client's URL.

Nothing is fetched unless the operator allows hosts. Then:

- The URL is parsed once, strictly, by the parser that also checks remote tool servers
  (`mcp.url_guard`); the connection goes to what it found. Hosts that are not allowed, other ports
  than 80 and 443 (unless allowed with the host) and, by default, `http://` are rejected.
- A name is resolved once and the connection goes to an address that was checked, while the name
  stays in the headers and in the check of the certificate. All its addresses must belong to the
  public internet, or be allowed themselves.
- Redirects are followed by hand, three at most, each checked like the first URL.
- No cookies, credentials or proxies, no compressed responses, and reading stops at the size limit.

What a client learns of a failure does not depend on the address or on the content found there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from dragoman.mcp.url_guard import (
    DEFAULT_PORTS,
    Endpoint,
    Resolve,
    UrlRejected,
    is_public,
    look_up_addresses,
    parse_allowed_host,
    parse_endpoint,
    resolve_host,
)
from dragoman.media.errors import MediaError

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger("dragoman.media")

CONNECT_TIMEOUT = 3.0  # seconds
TOTAL_TIMEOUT = 10.0  # seconds, with all redirects
MAX_REDIRECTS = 3
MAX_URL = 8192  # characters
REDIRECTS = (301, 302, 303, 307, 308)
NOT_DOWNLOADED = "could not be downloaded."
NOT_ALLOWED = (
    "has a URL that this server does not fetch. Send the content as a data URL: "
    "`data:TYPE;base64,…`."
)


class MediaFetcher:
    """Fetches from the hosts that the operator allows; from none by default."""

    def __init__(
        self,
        allowed: Iterable[str] = (),
        *,
        allow_http: bool = False,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._allowed = {parse_allowed_host(host) for host in allowed}
        self._addresses = {host for host, _ in self._allowed if _is_address(host)}
        self._schemes = ("https", "http") if allow_http else ("https",)
        self._resolve = resolve
        self._client: httpx2.AsyncClient | None = None

    async def fetch(self, url: str, limit: int) -> tuple[bytes, str | None]:
        """Return the content of a URL, at most `limit` bytes, and its declared media type."""
        self._check(url)
        try:
            async with asyncio.timeout(TOTAL_TIMEOUT):
                return await self._follow(url, limit)
        except TimeoutError:
            raise MediaError("download", NOT_DOWNLOADED) from None

    def _check(self, url: str) -> Endpoint:
        """Return host and port of a URL that may be fetched."""
        try:
            endpoint = parse_endpoint(url[: MAX_URL + 1])
        except UrlRejected:
            raise MediaError("url", NOT_ALLOWED) from None
        scheme = url.partition(":")[0].lower()
        is_standard = endpoint.port == DEFAULT_PORTS.get(scheme)
        host_allowed = is_standard and (endpoint.host, None) in self._allowed
        if (
            len(url) > MAX_URL
            or scheme not in self._schemes
            or not (host_allowed or (endpoint.host, endpoint.port) in self._allowed)
        ):
            raise MediaError("url", NOT_ALLOWED)
        return endpoint

    async def _follow(self, url: str, limit: int) -> tuple[bytes, str | None]:
        for _ in range(MAX_REDIRECTS + 1):
            endpoint = self._check(url)
            addresses = await self._find_addresses(endpoint)
            async with self._get(url, endpoint, addresses) as response:
                if response.status_code not in REDIRECTS:
                    return await _read_body(response, limit)
                url = self._join(url, response.headers.get("location", ""))
        raise MediaError("download", NOT_DOWNLOADED)

    def _join(self, url: str, location: str) -> str:
        """Return the target of a redirect, if it may be fetched."""
        import httpx2

        try:
            target = str(httpx2.URL(url).join(location))
            self._check(target)
        except (httpx2.InvalidURL, ValueError, MediaError):
            raise MediaError("download", NOT_DOWNLOADED) from None
        return target

    async def _find_addresses(self, endpoint: Endpoint) -> list[str]:
        addresses = await look_up_addresses(endpoint, self._resolve)
        if not addresses or not all(map(self._may_connect, addresses)):
            log.warning("media: %s is not a public host that can be reached", endpoint.host)
            raise MediaError("download", NOT_DOWNLOADED)
        return addresses

    def _may_connect(self, address: str) -> bool:
        return is_public(address) or address in self._addresses

    @contextlib.asynccontextmanager
    async def _get(
        self, url: str, endpoint: Endpoint, addresses: list[str]
    ) -> AsyncIterator[httpx2.Response]:
        """Open a response from the first address that accepts a connection."""
        import httpx2

        client = self._open_client()
        parsed = httpx2.URL(url)
        headers = {"host": parsed.netloc.decode("ascii")}
        response = None
        for address in addresses:
            request = client.build_request(
                "GET",
                parsed.copy_with(host=address, port=endpoint.port, fragment=None),
                headers=headers,
                extensions={"sni_hostname": endpoint.host},
            )
            with contextlib.suppress(httpx2.HTTPError, httpx2.InvalidURL, OSError):
                response = await client.send(request, stream=True)
                break
        if response is None:
            raise MediaError("download", NOT_DOWNLOADED)
        try:
            yield response
        finally:
            await response.aclose()

    def _open_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            import httpx2

            self._client = httpx2.AsyncClient(
                headers={"user-agent": "dragoman", "accept-encoding": "identity"},
                timeout=httpx2.Timeout(TOTAL_TIMEOUT, connect=CONNECT_TIMEOUT),
                limits=httpx2.Limits(max_keepalive_connections=0),  # each is checked anew
                trust_env=False,  # a proxy would resolve host names itself
                verify=httpx2.create_ssl_context(),  # with the authorities of `SSL_CERT_FILE`
                follow_redirects=False,
                cookies=None,
            )
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


async def _read_body(response: httpx2.Response, limit: int) -> tuple[bytes, str | None]:
    """Read a body up to the limit; a compressed one is rejected, because it was not asked for."""
    import httpx2

    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if response.status_code != 200 or encoding != "identity":
        raise MediaError("download", NOT_DOWNLOADED)
    body = bytearray()
    try:
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit:
                raise MediaError("file_too_large", f"is larger than the limit of {limit:,} bytes.")
    except (httpx2.HTTPError, httpx2.StreamError, OSError):
        raise MediaError("download", NOT_DOWNLOADED) from None
    return bytes(body), response.headers.get("content-type")
