"""The layers around the routes: plain ASGI callables, outermost first.

`RequestMiddleware` creates the request context, finds the wire API of its path, turns every error
into that wire API's error object, and counts the request once, however it ends. `HostGuard` rejects
requests that a browser was tricked into sending. `auth.KeyGuard` requires a key. None of them
touches `send`, so a chunk costs nothing here. A WebSocket handshake passes them before it is
accepted, and is counted when the WebSocket is closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import urlsplit

from dragoman.config import LOOPBACK, Settings
from dragoman.errors import (
    DragomanError,
    Draining,
    EngineFailed,
    ExceedsLimit,
    Forbidden,
    InvalidHost,
    ModelLoading,
    TooManyConnections,
    convert_engine_exception,
)
from dragoman.http.asgi import (
    HEALTH_ONLY,
    REQUEST,
    AsgiApp,
    Header,
    Receive,
    RequestContext,
    Scope,
    Send,
    make_request_id,
)
from dragoman.http.cancellation import Disconnected
from dragoman.http.metrics import Metrics
from dragoman.http.network.request_target import HOST
from dragoman.http.router import Router
from dragoman.telemetry.log_format import escape_text
from dragoman.telemetry.observer import CLIENT_CLOSED_REQUEST, RequestObserver

log = logging.getLogger("dragoman.http")

_REQUEST_ID = re.compile(rb"[\w.:@/+=-]{1,128}", re.ASCII)
DISCONNECTED_CODE = "client_disconnected"
NO_RETRY: Header = (b"x-should-retry", b"false")
REJECTIONS = (401, 403, 404)  # their messages name the path
HEALTH_ROUTES = ("/health", "/health/live", "/health/ready")
PROBE_ROUTES = (*HEALTH_ROUTES, "/metrics")  # polled; logged as debug


def get_request(scope: Scope) -> RequestContext:
    request = scope[REQUEST]
    assert isinstance(request, RequestContext)  # noqa: S101  # set by RequestMiddleware
    return request


class RequestMiddleware:
    """Creates the request context, sends errors, counts and logs."""

    def __init__(
        self,
        app: AsgiApp,
        metrics: Metrics,
        router: Router,
        observer: RequestObserver,
        report_error: Callable[[RequestContext, DragomanError], None],
    ) -> None:
        """`report_error` is called with every error that a client gets."""
        self._app = app
        self._report_error = report_error
        self._metrics = metrics
        self._observer = observer
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = RequestContext(scope, receive, send, choose_request_id(scope))
        scope[REQUEST] = request
        request.report_error = lambda error: self._report_error(request, error)
        self._router.resolve(request)
        with self._observer.observe(request.record, request.trace_headers) as record:
            if record.traceparent is not None:
                request.extra_headers.append((b"traceparent", record.traceparent.encode()))
            try:
                await self._serve(request, receive, send)
            finally:
                for end in request.on_end:
                    end()
                self._record(request)
                request.break_cycles()

    async def _serve(self, request: RequestContext, receive: Receive, send: Send) -> None:
        try:
            if HEALTH_ONLY in request.scope and request.path not in HEALTH_ROUTES:
                message = "The server has too many open connections."
                raise TooManyConnections(message, retry_after=1)
            await self._app(request.scope, receive, send)
        except DragomanError as error:
            await self._send_error(request, error)
        except Disconnected:
            request.error_code = DISCONNECTED_CODE
        except asyncio.CancelledError:
            await self._send_error(request, Draining("The server is stopping.", retry_after=1))
            raise
        except MemoryError as error:
            log.error("request %s: out of memory", request.request_id)
            await self._send_error(request, convert_engine_exception(error))
        except Exception:
            log.exception("request %s failed", request.request_id)
            await self._send_error(request, EngineFailed("Internal server error."))

    @staticmethod
    async def _send_error(request: RequestContext, error: DragomanError) -> None:
        request.error_code = error.code or error.type
        request.report_error(error)
        if request.status is not None:
            return
        status = request.dialect.get_error_status(error)
        if error.status in REJECTIONS:
            add_path(error, request)
        body = request.dialect.encode_error(error, request.request_id)
        try:
            await request.send_response(status, body, headers=make_retry_headers(error))
        except Disconnected:
            request.error_code = DISCONNECTED_CODE

    def _record(self, request: RequestContext) -> None:
        metrics, record = self._metrics, request.record
        status = request.status or CLIENT_CLOSED_REQUEST
        if request.error_code == DISCONNECTED_CODE:
            status = CLIENT_CLOSED_REQUEST
        record.status, record.error_code = status, request.error_code
        request.update_record()
        is_expected = status < 500 or request.error_code == ModelLoading.code
        record.is_probe = request.route in PROBE_ROUTES and is_expected
        metrics.requests[request.route or "none", status, record.model] += 1
        if not request.is_websocket:  # the lifetime of a WebSocket is not a useful duration
            metrics.duration.observe(record.elapsed)
        if request.error_code is None:
            metrics.succeeded += 1
        else:
            metrics.errors[request.error_code] += 1


def add_path(error: DragomanError, request: RequestContext) -> None:
    """Name the path in an error: often, the client has the wrong address."""
    path = escape_text(request.path)
    if path not in error.message:
        error.message += f" ({request.method} {path})"


def choose_request_id(scope: Scope) -> str:
    """Return the client's id if it is well-formed, else a new one. It is never used as a key."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return make_request_id()


def make_retry_headers(error: DragomanError) -> list[Header]:
    """Headers that tell a client whether and when to retry."""
    if error.retry_after is not None:
        seconds = max(1, round(error.retry_after))
        after = (b"retry-after", str(seconds).encode())
        return [after, NO_RETRY] if isinstance(error, ExceedsLimit) else [after]
    if error.status == 503:
        return [(b"retry-after", b"5")]
    return [NO_RETRY] if error.status in (500, 504) else []


class HostPolicy:
    """The hosts that requests to a server of our own may name.

    A web page can reach a server through a DNS name that its owner points to the server's address,
    and browsers then treat both as the same site. So a server on localhost knows its names. On
    other addresses, an API key protects it; without one, it accepts its own names, and addresses,
    which no DNS name can stand for.
    """

    def __init__(self, settings: Settings) -> None:
        allowed = (parse_host(host.encode()) or "" for host in settings.allowed_host)
        names = {*LOOPBACK, "[::1]", *allowed}
        self.is_on_loopback = settings.is_loopback
        if not self.is_on_loopback:
            own = socket.gethostname().lower()
            short = own.partition(".")[0]
            names |= {own, short, f"{short}.local", settings.host.lower()}
        self._names = frozenset(names)

    def accepts_host(self, host: str) -> bool:
        return host in self._names or (not self.is_on_loopback and is_address(host))

    def accepts_origin(self, origin: str, host: str | None) -> bool:
        """Whether a page may send requests: one of our names, or of the same host."""
        return origin in self._names or (not self.is_on_loopback and origin == host)


class HostGuard:
    """Rejects requests that a web page of another site makes a browser send."""

    def __init__(
        self, app: AsgiApp, policy: HostPolicy | None, needs_key: Callable[[], bool]
    ) -> None:
        """`policy` is None for an app that is mounted in another one, which guards it."""
        self._app = app
        self._policy = policy
        self._needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = get_request(scope)
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope.get("http_version") == "1.1":
            raise InvalidHost("HTTP/1.1 requires a Host header.")
        host = parse_host(hosts[0]) if hosts else None
        if hosts and (len(hosts) > 1 or host is None):
            raise InvalidHost("The Host header is malformed.")
        header = request.headers.get(b"origin")
        origin = None if header is None else parse_origin(header)
        policy = self._policy
        if policy is not None and (policy.is_on_loopback or not self._needs_key()):
            if host is not None and not policy.accepts_host(host):
                raise _make_host_error(host)
            if origin is not None and not policy.accepts_origin(origin, host):
                raise _make_host_error(origin)
        elif request.is_websocket and origin not in (None, host):
            # Browsers let any page open a WebSocket to any server.
            raise Forbidden("WebSockets are not allowed from pages of other origins.")
        await self._app(scope, receive, send)


def _make_host_error(name: str) -> Forbidden:
    return Forbidden(f"Host {name} is not allowed; start with `--allowed-host {name}`.")


def is_address(host: str) -> bool:
    """Whether a host is an IP address, and not a name."""
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


@lru_cache(maxsize=64)  # clients of a server name the same few hosts
def parse_host(host: bytes) -> str | None:
    """Return the host of a Host header, without its port; None if it is malformed."""
    match = HOST.fullmatch(host)
    return None if match is None else match[1].decode("latin-1").lower()


def parse_origin(origin: bytes) -> str:
    """Return the host of an Origin header; "null" for an opaque or malformed one."""
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or "null"
    except ValueError:
        return "null"
    return f"[{host}]" if ":" in host else host.lower()
