"""The carrier: HTTP to one remote server, and the only way out of this process to it.

Every request of a session passes here, redirects within the server included. It goes to an address
that `places` has looked at, with the name in its headers and in the check of the certificate. An
answer has a size. What fails becomes an error of the protocol, in words, for the one message that
it was about: the session goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from mcp_types import INTERNAL_ERROR

from dragoman.mcp.url_guard import PORTS, Endpoint, UrlGuard, UrlRejected, normalise_host, parse_endpoint

LARGEST = 4 * 1024 * 1024  # bytes of one answer, or of one event of a stream
CONNECT = 10.0  # seconds
OLD = (400, 404, 405)  # what servers of the older transport say to a message they do not expect
LATE = "The server did not answer in time."
GONE = "The server could not be reached."
DENIED = "The server wants an authorization that was not given."
PACKED = "The server's answer is compressed, which was not asked for."
ELSEWHERE = "The server redirects elsewhere, which is not followed."
_TRUST = httpx2.create_ssl_context()  # once: reading all certificates takes its time
_NEAR = (httpx2.ConnectError, httpx2.ConnectTimeout)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Carries the requests of one session. Without `places` it goes wherever it is told."""

    def __init__(self, places: UrlGuard | None) -> None:
        self._places = places
        self._inner = httpx2.AsyncHTTPTransport(verify=_TRUST)
        self._pinned: dict[Endpoint, list[str]] = {}
        self.maybe_legacy = False  # the server may be one of the older transport
        self.session_expired = False  # it does not know our session any more

    async def check_url(self, url: str) -> None:
        """Refuse a place that may not be gone to, before anything is sent."""
        if self._places is not None:
            await self._addresses(self._places, parse_endpoint(url))

    async def _addresses(self, places: UrlGuard, wanted: Endpoint) -> list[str]:
        if wanted not in self._pinned:
            self._pinned[wanted] = await places.resolve(wanted)
        return self._pinned[wanted]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._send(request)
        except UrlRejected as error:
            return _told(str(error))
        except httpx2.TimeoutException:
            return _told(LATE)
        except (httpx2.TransportError, httpx2.InvalidURL, OSError):
            return _told(GONE)
        if response.is_redirect and not _within(request, response):
            await response.aclose()
            return _told(ELSEWHERE)
        if request.method == "POST" and response.status_code >= 400:
            return await self._complaint(request, response)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return _told(PACKED)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101
        response.stream = _Measured(response.stream, _is_stream(response))
        return response

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        if self._places is None:
            return await self._inner.handle_async_request(request)
        url, host = request.url, _host(request.url)
        wanted = Endpoint(
            normalise_host(f"[{host}]" if ":" in host else host), url.port or PORTS[url.scheme]
        )
        *others, last = await self._addresses(self._places, wanted)
        for address in others:
            try:
                return await self._inner.handle_async_request(_towards(request, address))
            except _NEAR:
                self._pinned[wanted] = [one for one in self._pinned[wanted] if one != address]
        return await self._inner.handle_async_request(_towards(request, last))

    async def _complaint(
        self, request: httpx2.Request, response: httpx2.Response
    ) -> httpx2.Response:
        """A refusal, in the server's own words if it speaks the protocol."""
        status = response.status_code
        self.maybe_legacy = self.maybe_legacy or status in OLD
        self.session_expired = self.session_expired or (status == 404 and "mcp-session-id" in request.headers)
        if response.headers.get("content-type", "").lower().startswith("application/json"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101
            response.stream = _Measured(response.stream, False)
            try:
                body = await response.aread()
            except (httpx2.StreamError, httpx2.TransportError, httpx2.DecodingError):
                body = b""
            if b'"error"' in body and b'"jsonrpc"' in body:
                kept = {"content-type": "application/json"}
                return httpx2.Response(status, headers=kept, content=body)
        await response.aclose()
        told = DENIED if status in (401, 403) else f"The server answered with HTTP {status}."
        return _told(told, status)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Measured(httpx2.AsyncByteStream):
    """A body that ends in an error of this request when it is too long or breaks off.

    A stream of events may be long; its events have limits of their own.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, endless: bool) -> None:
        self._inner = inner
        self._endless = endless

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._inner:
                size += len(chunk)
                if size > LARGEST and not self._endless:
                    raise httpx2.StreamError("too large")
                yield chunk
        except (httpx2.TransportError, OSError):
            raise httpx2.StreamError("broken off") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")


def _towards(request: httpx2.Request, address: str) -> httpx2.Request:
    """The same request, to an address. The name stays in its headers and is what TLS checks."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": _host(request.url)},
    )


def _host(url: httpx2.URL) -> str:
    """As it is looked up; an international name is not decoded."""
    return url.raw_host.decode("ascii")


def _within(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether a redirect is followed: on the same server, and the message goes along."""
    try:
        onward = request.url.join(response.headers["location"])
    except (httpx2.InvalidURL, UnicodeError):
        return False
    kept = request.method == "GET" or response.status_code in (307, 308)
    return kept and (onward.host, *_way(onward)) == (request.url.host, *_way(request.url))


def _way(url: httpx2.URL) -> tuple[str, int]:
    return url.scheme, url.port or PORTS.get(url.scheme, 0)


def _told(words: str, status: int = 502) -> httpx2.Response:
    """An error of the protocol; whoever waits for an answer hears it."""
    error = {"code": INTERNAL_ERROR, "message": words}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error})


def create_http_client(
    carrier: GuardedTransport, headers: dict[str, str], seconds: float
) -> httpx2.AsyncClient:
    """A client whose every request goes through the carrier."""
    own = {"user-agent": "dragoman", "accept-encoding": "identity"}
    return httpx2.AsyncClient(
        transport=carrier,
        headers={**own, **headers},
        timeout=httpx2.Timeout(CONNECT, read=seconds),
        trust_env=False,  # a proxy would look names up for itself
        follow_redirects=False,
    )
