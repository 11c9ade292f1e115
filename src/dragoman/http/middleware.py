"""The layers around the routes: plain ASGI callables, outermost first.

`RequestMiddleware` creates the request context, finds the wire API of its path, turns every error
into that wire API's error object, and counts the request once, however it ends. `HostGuard` rejects
requests that a browser was tricked into sending. `KeyGuard` requires a key. None of them touches
`send`, so a chunk costs nothing here. A WebSocket handshake passes them before it is accepted, and
is counted when the WebSocket is closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import urlsplit

from dragoman.errors import (
    DragomanError,
    Draining,
    EngineFailed,
    Forbidden,
    InvalidHost,
    Unauthorized,
)
from dragoman.http.asgi import AsgiApp, Header, Receive, RequestContext, Scope, Send
from dragoman.http.auth import ApiKeys, read_keys
from dragoman.http.cancellation import Disconnected
from dragoman.http.metrics import Metrics
from dragoman.http.router import Router

log = logging.getLogger("dragoman.http")

_REQUEST_ID = re.compile(rb"[\w.:@/+=-]{1,128}", re.ASCII)
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.-]*)(:\d{1,5})?", re.ASCII)
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected
DISCONNECTED_CODE = "client_disconnected"
PROBE_ROUTES = ("/health", "/health/live", "/health/ready", "/metrics")  # polled; logged as debug


def get_request(scope: Scope) -> RequestContext:
    request = scope["dragoman"]
    assert isinstance(request, RequestContext)  # noqa: S101  # set by RequestMiddleware
    return request


class RequestMiddleware:
    """Creates the request context, sends errors, counts and logs."""

    def __init__(self, app: AsgiApp, metrics: Metrics, router: Router) -> None:
        self._app = app
        self._metrics = metrics
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = RequestContext(scope, receive, send, choose_request_id(scope))
        scope["dragoman"] = request
        self._router.resolve(request)
        started = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        except DragomanError as error:
            await self._send_error(request, error)
        except Disconnected:
            request.error_code = DISCONNECTED_CODE
        except asyncio.CancelledError:
            await self._send_error(request, Draining("The server is stopping.", retry_after=1))
            raise
        except Exception:
            log.exception("request %s failed", request.request_id)
            await self._send_error(request, EngineFailed("Internal server error."))
        finally:
            self._record(request, time.perf_counter() - started)

    @staticmethod
    async def _send_error(request: RequestContext, error: DragomanError) -> None:
        request.error_code = error.code or error.type
        if request.status is not None:
            return
        status = request.dialect.get_error_status(error)
        body = request.dialect.encode_error(error, request.request_id)
        try:
            await request.send_response(status, body, headers=make_retry_headers(error))
        except Disconnected:
            request.error_code = DISCONNECTED_CODE

    def _record(self, request: RequestContext, seconds: float) -> None:
        metrics = self._metrics
        status = request.status or CLIENT_CLOSED_REQUEST
        if request.error_code == DISCONNECTED_CODE:
            status = CLIENT_CLOSED_REQUEST
        metrics.requests[request.route or "none", status] += 1
        if not request.is_websocket:  # the lifetime of a WebSocket is not a useful duration
            metrics.duration.observe(seconds)
        if request.error_code is None:
            metrics.succeeded += 1
        else:
            metrics.errors[request.error_code] += 1
        is_probe = request.route in PROBE_ROUTES and status < 500
        log.log(
            logging.DEBUG if is_probe else logging.INFO,
            "%s %s %s %d %.0f ms%s",
            request.request_id,
            request.method,
            request.route or "no route",
            status,
            seconds * 1000,
            f" {request.error_code}" if request.error_code else "",
        )


def choose_request_id(scope: Scope) -> str:
    """The client's id if it is well-formed, else a new one. It is never used as a key."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"req_{uuid.uuid4().hex}"


def make_retry_headers(error: DragomanError) -> list[Header]:
    """Headers that tell a client whether and when to retry."""
    if error.retry_after is not None:
        seconds = max(1, round(error.retry_after))
        return [(b"retry-after", str(seconds).encode())]
    if error.status == 503:
        return [(b"retry-after", b"5")]
    return [(b"x-should-retry", b"false")] if error.status == 500 else []


class HostGuard:
    """Rejects requests to a local server that name another host.

    A web page could otherwise reach the server through a DNS name that points to this machine.
    """

    def __init__(self, app: AsgiApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts  # None: any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = get_request(scope)
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = hosts[0] if hosts else None
        if host is not None and (len(hosts) > 1 or not _HOST.fullmatch(host)):
            raise InvalidHost("The Host header is malformed.")
        origin = request.get_header(b"origin")
        origin_host = None if origin is None else parse_origin(origin)
        if self._hosts is not None:
            for name in (parse_host(host), origin_host):
                if name is not None and name not in self._hosts:
                    raise Forbidden(
                        f"Host {name} is not allowed; start with `--allowed-host {name}`."
                    )
        elif request.is_websocket and origin_host is not None and origin_host != parse_host(host):
            # Browsers let any page open a WebSocket to any server.
            raise Forbidden("WebSockets are not allowed from pages of other origins.")
        await self._app(scope, receive, send)


def parse_host(host: bytes | None) -> str | None:
    return None if host is None else re.sub(r":\d+$", "", host.decode("latin-1")).lower()


def parse_origin(origin: bytes) -> str:
    """The host of an Origin header; "null" for an opaque or malformed one."""
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or "null"
    except ValueError:
        return "null"
    return f"[{host}]" if ":" in host else host.lower()


class KeyGuard:
    """Requires a key for every path that is not open, whether it exists or not."""

    def __init__(self, app: AsgiApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = get_request(scope)
        keys = read_keys(scope["headers"])
        if request.access == "admin" and not self._is_admin(keys):
            if keys and self._keys.accepts(keys):
                raise Forbidden("This path needs an admin key.")
            raise _make_unauthorized(keys)
        if request.access == "key":
            request.owner = self._keys.get_owner(keys)
            if self._keys.required and not request.owner:
                raise _make_unauthorized(keys)
        await self._app(scope, receive, send)

    def _is_admin(self, keys: list[bytes]) -> bool:
        if self._keys.has_admin_keys:
            return self._keys.accepts_admin(keys)
        return not self._keys.required


def _make_unauthorized(keys: list[bytes]) -> Unauthorized:
    if keys:
        return Unauthorized("Invalid API key.")
    return Unauthorized("Missing API key: send it as `Authorization: Bearer KEY`.")
