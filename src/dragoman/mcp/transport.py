"""HTTP to one remote server. All its requests leave this process here.

Every request of a session passes through `GuardedTransport`, including redirects within the server.
It goes to an address that the `UrlGuard` has checked, while the host name stays in the headers and
in the check of the certificate. The size of a response is limited. A failure becomes a JSON-RPC
error for the one message that it concerns: the session continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from mcp_types import INTERNAL_ERROR

from dragoman.mcp.url_guard import (
    DEFAULT_PORTS,
    Endpoint,
    UrlGuard,
    UrlRejected,
    normalize_host,
    parse_endpoint,
)
from dragoman.telemetry.record import get_record

MAX_RESPONSE = 4 * 1024 * 1024  # bytes of one response, or of one event of a stream
CONNECT_TIMEOUT = 10.0  # seconds
LEGACY_STATUSES = (400, 404, 405)  # what servers of the older transport answer to a POST
TIMED_OUT = "The server did not answer in time."
UNREACHABLE = "The server could not be reached."
UNAUTHORIZED = "The server requires authorization, which was not sent."
COMPRESSED = "The server's response is compressed, which was not requested."
REDIRECTED = "The server redirects to another server; redirects are not followed."
_SSL_CONTEXT = httpx2.create_ssl_context()  # created once, because loading certificates is slow
_CONNECT_ERRORS = (httpx2.ConnectError, httpx2.ConnectTimeout)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of one session. Without a guard, it connects to any address."""

    def __init__(self, guard: UrlGuard | None) -> None:
        self._guard = guard
        self._inner = httpx2.AsyncHTTPTransport(verify=_SSL_CONTEXT)
        self._pinned: dict[Endpoint, list[str]] = {}
        self.may_be_legacy = False  # the server may use the older transport
        self.has_session_expired = False  # the server does not know our session any more

    async def check_url(self, url: str) -> None:
        """Reject a URL that the guard does not allow, before anything is sent."""
        if self._guard is not None:
            await self._get_addresses(self._guard, parse_endpoint(url))

    async def _get_addresses(self, guard: UrlGuard, endpoint: Endpoint) -> list[str]:
        if endpoint not in self._pinned:
            self._pinned[endpoint] = await guard.resolve(endpoint)
        return self._pinned[endpoint]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._send(request)
        except UrlRejected as error:
            return _make_error_response(str(error))
        except httpx2.TimeoutException:
            return _make_error_response(TIMED_OUT)
        except (httpx2.TransportError, httpx2.InvalidURL, OSError):
            return _make_error_response(UNREACHABLE)
        if response.is_redirect and not _should_follow(request, response):
            await response.aclose()
            return _make_error_response(REDIRECTED)
        if request.method == "POST" and response.status_code >= 400:
            return await self._convert_error(request, response)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return _make_error_response(COMPRESSED)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101
        response.stream = _LimitedStream(response.stream, unlimited=_is_event_stream(response))
        return response

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        if self._guard is None:
            return await self._inner.handle_async_request(request)
        url, host = request.url, _get_host(request.url)
        endpoint = Endpoint(
            normalize_host(f"[{host}]" if ":" in host else host),
            url.port or DEFAULT_PORTS[url.scheme],
        )
        *others, last = await self._get_addresses(self._guard, endpoint)
        for address in others:
            try:
                return await self._inner.handle_async_request(_make_request_to(request, address))
            except _CONNECT_ERRORS:
                remaining = [other for other in self._pinned[endpoint] if other != address]
                self._pinned[endpoint] = remaining
        return await self._inner.handle_async_request(_make_request_to(request, last))

    async def _convert_error(
        self, request: httpx2.Request, response: httpx2.Response
    ) -> httpx2.Response:
        """Return an error response: the server's own if it is JSON-RPC, else one that we make."""
        status = response.status_code
        if status in LEGACY_STATUSES:
            self.may_be_legacy = True
        if status == 404 and "mcp-session-id" in request.headers:
            self.has_session_expired = True
        if response.headers.get("content-type", "").lower().startswith("application/json"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101
            response.stream = _LimitedStream(response.stream, unlimited=False)
            try:
                body = await response.aread()
            except (httpx2.StreamError, httpx2.TransportError, httpx2.DecodingError):
                body = b""
            if b'"error"' in body and b'"jsonrpc"' in body:
                headers = {"content-type": "application/json"}
                return httpx2.Response(status, headers=headers, content=body)
        await response.aclose()
        if status in (401, 403):
            return _make_error_response(UNAUTHORIZED, status)
        return _make_error_response(f"The server answered with HTTP {status}.", status)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    """A body that raises an error of its request if it is too long or breaks off.

    An event stream may be long; its events have a limit of their own.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, *, unlimited: bool) -> None:
        self._inner = inner
        self._unlimited = unlimited

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._inner:
                size += len(chunk)
                if size > MAX_RESPONSE and not self._unlimited:
                    raise httpx2.StreamError("too large")
                yield chunk
        except (httpx2.TransportError, OSError):
            raise httpx2.StreamError("broken off") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_event_stream(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")


def _make_request_to(request: httpx2.Request, address: str) -> httpx2.Request:
    """Return the same request to an address. Its headers and the TLS check keep the host name."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": _get_host(request.url)},
    )


def _get_host(url: httpx2.URL) -> str:
    """Return the host as it is resolved; an international name is not decoded."""
    return url.raw_host.decode("ascii")


def _should_follow(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether a redirect stays on the same server and keeps the message."""
    try:
        target = request.url.join(response.headers["location"])
    except (httpx2.InvalidURL, UnicodeError):
        return False
    keeps_message = request.method == "GET" or response.status_code in (307, 308)
    return keeps_message and _get_origin(target) == _get_origin(request.url)


def _get_origin(url: httpx2.URL) -> tuple[str, str, int]:
    return url.host, url.scheme, url.port or DEFAULT_PORTS.get(url.scheme, 0)


def _make_error_response(message: str, status: int = 502) -> httpx2.Response:
    """Return a JSON-RPC error, which the SDK raises for the request that waits for it."""
    error = {"code": INTERNAL_ERROR, "message": message}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error})


def create_http_client(
    transport: GuardedTransport, headers: dict[str, str], timeout: float
) -> httpx2.AsyncClient:
    """Return an HTTP client whose requests all use the transport."""
    own = {"user-agent": "dragoman", "accept-encoding": "identity"}
    traceparent = get_record().traceparent
    if traceparent is not None:
        own["traceparent"] = traceparent
    return httpx2.AsyncClient(
        transport=transport,
        headers={**own, **headers},
        timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=timeout),
        trust_env=False,  # a proxy would resolve host names itself
        follow_redirects=False,
    )
