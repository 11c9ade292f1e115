"""Sends the lines of batches to the routes of their endpoint.

A line becomes a request without a connection: it passes the same middleware, routes and handlers as
one over HTTP, and its answer is collected instead of sent. Only the guards differ. There is no host
to check, and the owner is known from the batch, not from a key; but the owner must still have a
valid key whose scope has the endpoint, and every line counts towards the limits of that key. A line
leaves some of these limits for live requests: the last concurrent request, where there are several,
and a tenth of what one minute allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from dragoman.errors import Forbidden, Overloaded, Unauthorized
from dragoman.http.asgi import Message, Receive, RequestContext, Scope, Send
from dragoman.http.middleware import NO_RETRY, RequestMiddleware, get_request
from dragoman.keys import KeyStore, RateLimiter
from dragoman.protocols.batches import LineAnswer
from dragoman.types.cache_scope import set_cache_scope
from dragoman.types.limits import RateLimit, limit_priority

OWNER = "dragoman.owner"  # scope key: the owner of the batch
SPARE_SHARE = 10  # one tenth of each limit per minute stays free
RETRY_STATUSES = (429, 503)
DEFAULT_RETRY = 1.0  # seconds


class OwnerGuard:
    """Lets the lines of batches pass on behalf of their owners."""

    def __init__(
        self,
        dispatch: Callable[[RequestContext], Awaitable[None]],
        keys: KeyStore,
        limiter: RateLimiter,
    ) -> None:
        self._dispatch = dispatch
        self._keys = keys
        self._limiter = limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = get_request(scope)
        request.owner = scope[OWNER]
        await self._keys.refresh()
        self._authorize(request)
        self._check_spare(request.owner)
        set_cache_scope(request.owner)
        limit_priority("batch")
        with self._limiter.start_request(request.owner, is_concurrent=request.is_concurrent):
            await self._dispatch(request)

    def _authorize(self, request: RequestContext) -> None:
        """Note the owner's key in the request; raise if it may not use the route."""
        if not request.owner and not self._keys.required:
            return
        entry = self._keys.find_owner(request.owner)
        if entry is None:
            raise Unauthorized("The API key that created this batch is no longer valid.")
        request.key_name = entry.name
        if request.route_name is None or not entry.scope.allows_route(request.route_name):
            raise Forbidden("This API key may not use this path.")

    def _check_spare(self, owner: str) -> None:
        """Raise `Overloaded`, which delays the line, if it would take the last of a limit."""
        allowed = self._limiter.find_limits(owner).concurrent_requests
        running = self._limiter.get_usage(owner).running
        status = self._limiter.get_status(owner)
        scarce = status is not None and (_is_scarce(status.requests) or _is_scarce(status.tokens))
        if scarce or (allowed is not None and running >= max(1, allowed - 1)):
            raise Overloaded("The batch waits for the limits of its key.", retry_after=1)


def _is_scarce(limit: RateLimit | None) -> bool:
    return limit is not None and limit.remaining < max(1, limit.limit // SPARE_SHARE)


class LineSender:
    """Sends requests of batches through the middleware of a server."""

    def __init__(self, app: RequestMiddleware) -> None:
        self._app = app

    async def send(self, owner: str, endpoint: str, body: bytes) -> LineAnswer:
        """Send the body of a request, and return its answer. Cancelling this cancels it."""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        answer = CollectedAnswer()

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # there is no client that could disconnect
            return {"type": "http.disconnect"}

        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": endpoint,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "query_string": b"",
            OWNER: owner,
        }
        # in its own task: what a request sets in its context ends with it
        await asyncio.create_task(self._app(scope, receive, answer.send))
        return answer.make_line_answer()


class CollectedAnswer:
    """The answer to a request, as the app sends it."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
        else:
            self._parts.append(message.get("body", b""))

    def make_line_answer(self) -> LineAnswer:
        request_id = self._headers.get(b"x-request-id", b"").decode()
        retry_after = None
        name, value = NO_RETRY
        if self._status in RETRY_STATUSES and self._headers.get(name) != value:
            retry_after = float(self._headers.get(b"retry-after", b"") or DEFAULT_RETRY)
        return LineAnswer(self._status, request_id, b"".join(self._parts), retry_after)
