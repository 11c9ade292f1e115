"""The layers around the routes: plain ASGI callables, outermost first.

`Outermost` makes the exchange, looks its path up, turns every error into the error object of the
dialect that is spoken there and counts the request once, however it ended. `HostGuard` refuses what
a browser was tricked into sending. `KeyGuard` asks for a key. None of them touches `send`, so a
chunk costs nothing here. A request for a WebSocket passes them before it is accepted, and is
counted when it has been closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from urllib.parse import urlsplit

from dragoman.errors import (
    BadRequest,
    DragomanError,
    Draining,
    EngineFailed,
    Forbidden,
    Unauthorized,
)
from dragoman.http import auth as keyring
from dragoman.http.asgi import App, Header, Receive, RequestContext, Scope, Send
from dragoman.http.auth import ApiKeys
from dragoman.http.cancellation import Disconnected
from dragoman.http.metrics import Metrics
from dragoman.http.router import Router

log = logging.getLogger("dragoman.http")

_REQUEST_ID = re.compile(rb"[\w.:@/+=-]{1,128}", re.ASCII)
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[\w.-]*)(:\d{1,5})?", re.ASCII)
CLOSED_BY_CLIENT = 499
PROBES = ("/health", "/health/live", "/health/ready", "/metrics")  # asked every few seconds


def get_request(scope: Scope) -> RequestContext:
    exchange = scope["dragoman"]
    assert isinstance(exchange, RequestContext)  # noqa: S101  # set by Outermost
    return exchange


class RequestMiddleware:
    """Makes the exchange, answers errors, counts and logs."""

    def __init__(self, app: App, metrics: Metrics, routes: Router) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = RequestContext(scope, receive, send, choose_request_id(scope))
        scope["dragoman"] = exchange
        self._routes.look_up(exchange)
        began = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        except DragomanError as error:
            await self._fail(exchange, error)
        except Disconnected:
            exchange.error_code = "client_disconnected"
        except asyncio.CancelledError:
            await self._fail(exchange, Draining("The server is stopping.", retry_after=1))
            raise
        except Exception:
            log.exception("request %s broke", exchange.request_id)
            await self._fail(exchange, EngineFailed("The server failed to answer."))
        finally:
            self._count(exchange, time.perf_counter() - began)

    async def _fail(self, exchange: RequestContext, error: DragomanError) -> None:
        exchange.error_code = error.code or error.type
        if exchange.status is not None:
            return
        status = exchange.status_of(error)
        body = exchange.write_error(error, exchange.request_id)
        try:
            await exchange.send_response(status, body, headers=make_retry_headers(error))
        except Disconnected:
            exchange.error_code = "client_disconnected"

    def _count(self, exchange: RequestContext, seconds: float) -> None:
        metrics = self._metrics
        status = exchange.status or CLOSED_BY_CLIENT
        if exchange.error_code == "client_disconnected":
            status = CLOSED_BY_CLIENT
        metrics.requests[exchange.route or "none", status] += 1
        if not exchange.is_websocket:  # how long one stays open measures nothing
            metrics.duration.observe(seconds)
        if exchange.error_code is None:
            metrics.succeeded += 1
        else:
            metrics.errors[exchange.error_code] += 1
        level = logging.DEBUG if exchange.route in PROBES and status < 500 else logging.INFO
        log.log(
            level,
            "%s %s %s %d %.0f ms%s",
            exchange.request_id,
            exchange.method,
            exchange.route or "no route",
            status,
            seconds * 1000,
            f" {exchange.error_code}" if exchange.error_code else "",
        )


def choose_request_id(scope: Scope) -> str:
    """The client's id if it is a sane one, else a new one. Never used as a key inside."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"req_{uuid.uuid4().hex}"


def make_retry_headers(error: DragomanError) -> list[Header]:
    """Headers that tell a client whether and when to try again."""
    if error.retry_after is not None:
        seconds = max(1, round(error.retry_after))
        return [(b"retry-after", str(seconds).encode())]
    if error.status == 503:
        return [(b"retry-after", b"5")]
    return [(b"x-should-retry", b"false")] if error.status == 500 else []


class HostGuard:
    """A server on this machine answers only requests made to this machine by name.

    That is what keeps a web page from reaching it through a name that was pointed here.
    """

    def __init__(self, app: App, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = get_request(scope)
        said = [value for name, value in scope["headers"] if name == b"host"]
        host = said[0] if said else None
        if host is not None and (len(said) > 1 or not _HOST.fullmatch(host)):
            raise BadRequest("The Host header is malformed.", code="bad_host")
        origin = exchange.header(b"origin")
        page = None if origin is None else parse_origin(origin)
        if self._hosts is not None:
            for name in (parse_host(host), page):
                if name is not None and name not in self._hosts:
                    raise Forbidden("This server does not answer to that host name.")
        elif exchange.is_websocket and page is not None and page != parse_host(host):
            # browsers ask nobody before they let a page open one
            raise Forbidden("This server gives no WebSockets to pages from elsewhere.")
        await self._app(scope, receive, send)


def parse_host(host: bytes | None) -> str | None:
    return None if host is None else re.sub(r":\d+$", "", host.decode("latin-1")).lower()


def parse_origin(origin: bytes) -> str:
    """The host of an Origin header; an opaque or broken one is no host of ours."""
    try:
        host = urlsplit(origin.decode("latin-1")).hostname or "null"
    except ValueError:
        return "null"
    return f"[{host}]" if ":" in host else host.lower()


class KeyGuard:
    """Asks for a key on every route that is not open, known or not."""

    def __init__(self, app: App, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = get_request(scope)
        access = Router.access(exchange)
        shown = keyring.read_keys(scope["headers"])
        if access == "admin" and not self._administers(shown):
            raise self._refusal(shown, "This needs an admin key.")
        if access == "key":
            exchange.owner = self._keys.owner_of(shown)
            if self._keys.required and not exchange.owner:
                raise self._refusal(shown, "")
        await self._app(scope, receive, send)

    def _administers(self, shown: list[bytes]) -> bool:
        if self._keys.has_admin_keys:
            return self._keys.accepts_admin(shown)
        return not self._keys.required

    def _refusal(self, shown: list[bytes], forbidden: str) -> DragomanError:
        if forbidden and shown and self._keys.accepts(shown):
            return Forbidden(forbidden)
        if shown:
            return Unauthorized("The API key is not known here.")
        return Unauthorized("An API key is needed: send it as `Authorization: Bearer KEY`.")
