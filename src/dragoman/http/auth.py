"""Who sends a request, and whether they may: keys, scopes and limits, for every route.

`KeyGuard` is the one place that decides. A request needs a valid key unless its path is open; the
key must have the route in its scope, and its owner must be within its limits. A request with two
different keys is refused wherever a key is needed, even if one of them is invalid: its owner would
be ambiguous, and one request could try several keys. Models are part of the scope, too; the
registry hides those that an owner may not use. A WebSocket is checked at its handshake and again
for each message, so that a removed key starts nothing new. An answer that has started is finished,
whatever happens to its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager

from dragoman.errors import DragomanError, Forbidden, ModelNotFound, Unauthorized
from dragoman.http.asgi import AsgiApp, Receive, RequestContext, Scope, Send
from dragoman.http.middleware import get_request
from dragoman.keys import AuditLog, KeyEntry, KeyStore, RateLimiter
from dragoman.telemetry.log_format import escape_text
from dragoman.telemetry.reports import DEBUG_HEADER, REPORT_HEADERS, parse_report_headers
from dragoman.types import Json
from dragoman.types.cache_scope import set_cache_scope

REFUSALS = (401, 403, 429)  # statuses that the audit log records
INTERNAL_ERROR = 500
REPORT_HEADER_NAMES = [name.encode() for name in REPORT_HEADERS]


def read_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the different keys of a request, in `Authorization: Bearer` and `x-api-key`."""
    keys = []
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            keys.append(value[7:].strip())
        elif name == b"x-api-key":
            keys.append(value.strip())
    return list(dict.fromkeys(filter(None, keys)))


class KeyGuard:
    """Requires a key for every path that is not open, whether it exists or not."""

    def __init__(
        self,
        app: AsgiApp,
        keys: KeyStore,
        limiter: RateLimiter,
        audit: AuditLog,
        *,
        local: bool,
        allows_debug: bool,
    ) -> None:
        """`local`: only this machine can connect, so that admin paths need no key if none is set.

        `allows_debug`: everyone may see prompts and raw outputs of their own requests.
        """
        self._app = app
        self._keys = keys
        self._limiter = limiter
        self._audit = audit
        self._local = local
        self._allows_debug = allows_debug

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = get_request(scope)
        request.authorize = lambda: self._authorize(request)
        with await self._authorize(request):
            if not request.is_websocket:
                await self._serve(request, receive, send)
        if request.is_websocket:  # its messages are counted one by one
            await self._serve(request, receive, send)

    async def _serve(self, request: RequestContext, receive: Receive, send: Send) -> None:
        status: int | None = INTERNAL_ERROR  # for exceptions that are not handled below
        try:
            await self._app(request.scope, receive, send)
            status = request.status
        except ModelNotFound as error:
            status = error.status
            if request.owner and self._keys.find_owner(request.owner) is None:
                # all models are hidden from a key that was removed since it was checked
                raise Unauthorized("This API key is no longer valid.") from None
            raise
        except DragomanError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = request.status  # None if its client has disconnected before the response
            raise
        finally:
            self._record_admin_action(request, status)

    async def _authorize(self, request: RequestContext) -> AbstractContextManager[None]:
        """Check the key of a request, and return a block inside which the request is counted."""
        await self._keys.refresh()
        key = self._read_key(request)
        found = self._keys.find(key) if key else None
        entry = found if self._needs_key(request) else None
        if entry is not None:
            request.owner, request.key_name = entry.owner, entry.name
            request.get_rate_limits = lambda: self._limiter.get_status(entry.owner)
        set_cache_scope(request.owner)
        running = self._limiter.start_request(request.owner, is_concurrent=request.is_concurrent)
        try:
            request.is_admin = is_admin = self._is_admin(found)
            if request.access == "admin" and not is_admin:
                raise self._make_admin_error(found, key)
            if request.access == "key" and self._keys.required and entry is None:
                raise self._make_unauthorized(key)
            name = request.route_name
            if entry is not None and name is not None and not entry.scope.allows_route(name):
                raise Forbidden("This API key may not use this path.")
            self._set_report_options(request, is_admin=is_admin)
        except BaseException:
            running.cancel()
            raise
        return running

    def _read_key(self, request: RequestContext) -> bytes:
        """Return the key of a request, or empty bytes; reject two keys where one is needed."""
        if not (self._keys.required or self._keys.has_admin_keys):
            return b""  # no key has a meaning
        keys = read_keys(request.scope["headers"])
        if len(keys) > 1 and self._needs_key(request):
            raise Unauthorized(
                "The request has two different API keys, in its `Authorization` and `x-api-key` "
                "headers. Send one of them."
            )
        return keys[0] if len(keys) == 1 else b""

    def _needs_key(self, request: RequestContext) -> bool:
        if request.access == "admin":
            return self._keys.required or self._keys.has_admin_keys
        return request.access == "key" and self._keys.required

    def _set_report_options(self, request: RequestContext, *, is_admin: bool) -> None:
        """Set which reports the request's headers ask for; `Forbidden` if the client may not."""
        if request.headers.keys().isdisjoint(REPORT_HEADER_NAMES):
            return
        timings, trace, debug = map(request.get_header_text, REPORT_HEADERS)
        if debug is not None and not (self._allows_debug or is_admin):
            raise Forbidden(
                f"The header `{DEBUG_HEADER}` needs an admin key, or a server that was started "
                "with `--debug-header`."
            )
        request.record.options |= parse_report_headers(timings, trace, debug)

    def _is_admin(self, entry: KeyEntry | None) -> bool:
        if self._keys.has_admin_keys:
            return entry is not None and entry.is_admin
        return self._local and not self._keys.required

    def _make_admin_error(self, entry: KeyEntry | None, key: bytes) -> DragomanError:
        if self._keys.required and entry is None:
            return self._make_unauthorized(key)
        if not self._keys.has_admin_keys:
            return Forbidden(
                "This path needs an admin key, and the server has none. "
                "Start it with `--admin-key KEY`."
            )
        if not key:
            return self._make_unauthorized(key)
        return Forbidden("This path needs an admin key.")

    def _make_unauthorized(self, key: bytes) -> Unauthorized:
        if not key:
            return Unauthorized("Missing API key: send it as `Authorization: Bearer KEY`.")
        if self._keys.has_expired(key):
            return Unauthorized("This API key has expired.")
        return Unauthorized("Invalid API key.")

    # The audit log

    def report_error(self, request: RequestContext, error: DragomanError) -> None:
        """Record an error in the audit log, if it is a refusal."""
        if error.status in REFUSALS:
            source = request.owner or get_address(request)
            fields = make_audit_fields(request) | {"status": error.status, "code": error.code}
            self._audit.record_refusal(source, fields)

    def _record_admin_action(self, request: RequestContext, status: int | None) -> None:
        if request.access == "admin":
            model = escape_text(request.record.requested_model)
            fields = make_audit_fields(request) | {"model": model, "status": status}
            self._audit.record("admin", fields)


def get_address(request: RequestContext) -> str:
    client = request.scope.get("client")
    return str(client[0]) if client else ""


def make_audit_fields(request: RequestContext) -> dict[str, Json]:
    """Return what the audit log has about a request: the pattern of its path, not its content."""
    name = request.route_name
    return {
        "method": escape_text(request.method, 16),
        "route": "none" if name is None else name.path,
        "key": request.key_name or request.owner[:8],
        "address": get_address(request),
        "request_id": request.request_id,
    }
