"""Reading and decoding request bodies, and how large they may be.

Unless the operator sets a limit, it follows from the context of the models: as many tokens as fit
into the largest one, each of the longest kind, each character escaped as in `\\u0041`. Media, tools
and stored items need room whatever the context is, so there is a minimum. The maximum keeps what
one request can cost within bounds: a body is in memory twice while it is decoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from dragoman.config import Settings
from dragoman.errors import UnsupportedMedia
from dragoman.http.asgi import JSON, RequestContext
from dragoman.http.middleware import parse_host, parse_origin
from dragoman.http.network.body_budget import UNLIMITED, BodyBudget
from dragoman.keys.rate_limits import release_with_charge
from dragoman.models.model import Model
from dragoman.protocols.dialect import Decode, DialectContext
from dragoman.protocols.shared.json_body import LARGE_BODY, collect_warnings
from dragoman.signing import Signer
from dragoman.types.loop_share import StartQueue
from dragoman.types.worker_threads import run_in_decoder

ESCAPE = 6  # bytes of an escaped character
MINIMUM = 8 << 20  # bytes
MAXIMUM = 24 << 20  # also the limit for models that read media, and while no model is loaded
FORM = b"application/x-www-form-urlencoded"  # which `curl -d` sends by default
CURL_HINT = " (curl: add `-H 'content-type: application/json'`)"
T = TypeVar("T")


class BodyLimit:
    """The limit of a server, which changes with its models and its settings."""

    def __init__(
        self,
        settings: Settings,
        list_models: Callable[[], Iterable[Model]],
        budget: BodyBudget = UNLIMITED,
    ) -> None:
        self._settings = settings
        self._list_models = list_models
        self.budget = budget  # of all bodies together

    @property
    def minimum(self) -> int:
        """Bytes that are allowed whatever models are loaded."""
        return self._settings.body_limit or MINIMUM

    def get(self) -> int:
        """Return the limit in bytes."""
        return self._settings.body_limit or max(
            map(_find_limit, self._list_models()), default=MAXIMUM
        )

    def explain(self) -> str:
        """Return a sentence that says where the limit comes from."""
        if self._settings.body_limit is not None:
            return "The server's --body-limit can raise this."
        return "This follows from the model's context; the server's --body-limit can raise it."


def _find_limit(model: Model) -> int:
    capabilities = model.capabilities
    if capabilities.context is None or set(capabilities.modalities) != {"text"}:
        return MAXIMUM
    text = ESCAPE * model.get_prompt_limit("prompt").characters
    return min(max(text, MINIMUM), MAXIMUM)


class BodyReader:
    """Reads the JSON bodies of requests and decodes them in their wire API."""

    def __init__(
        self,
        settings: Settings,
        limit: BodyLimit,
        get_signer: Callable[[], Awaitable[Signer]],
    ) -> None:
        self._settings = settings
        self._limit = limit
        self._get_signer = get_signer
        self._starts = StartQueue()

    async def read(self, request: RequestContext) -> bytes:
        if request.headers.get(b"content-type") != JSON:
            check_content_type(request)
        request.refuse_compressed_body()
        with request.record.measure("receive"):
            hold = self._limit.budget.open_hold(request.owner)
            if not release_with_charge(hold.release):
                request.on_end.append(hold.release)
            body = request.take_body(self._limit.minimum)
            if body is None:
                limit, timeout = self._limit.get(), self._settings.receive_timeout
                body = await request.read_body(limit, timeout, self._limit.explain(), hold.grow)
            else:
                hold.grow(len(body))
            await self._starts.wait_turn()
        return body

    async def make_context(self, request: RequestContext) -> DialectContext:
        """Return what the wire API of a request needs to decode it and to encode its response."""
        signer = None
        if request.dialect.uses_signer:
            signer = (await self._get_signer()).for_owner(request.owner)
        return DialectContext(
            strict=self._settings.strict_params, request_id=request.request_id, signer=signer
        )

    async def read_and_decode(self, request: RequestContext, decode: Decode[T]) -> T:
        body = await self.read(request)
        return await self.decode(request, body, decode, await self.make_context(request))

    @staticmethod
    async def decode(
        request: RequestContext, body: bytes, decode: Decode[T], context: DialectContext
    ) -> T:
        """Decode a body; a large one in a thread, so that the event loop does not wait for it."""
        with collect_warnings(request.warnings), request.record.measure("decode"):
            if len(body) <= LARGE_BODY:
                return decode(body, context)
            return await run_in_decoder(decode, body, context)


def check_content_type(request: RequestContext) -> None:
    """Reject a body that is not JSON, or that a page of another site may send unasked."""
    content_type = request.headers.get(b"content-type")
    if content_type is None:
        content_type = b"" if is_from_other_site(request) else JSON
    media_type = content_type.partition(b";")[0].strip().lower()
    is_form = media_type == FORM and request.dialect.accepts_form_type
    if not media_type.endswith(b"json") and not (is_form and not is_from_page(request)):
        hint = CURL_HINT if media_type == FORM else ""
        raise UnsupportedMedia(f"Set `Content-Type: application/json`{hint}.")


def is_from_page(request: RequestContext) -> bool:
    """Whether a web page sends the request: browsers mark every request of a page but some GETs."""
    return any(name in request.headers for name in (b"origin", b"sec-fetch-site"))


def is_from_other_site(request: RequestContext) -> bool:
    """Whether a page of another site sends the request.

    A browser sends such a request without asking the server first if its content type is one of a
    form or is missing. So JSON from pages must say that it is JSON; then the browser asks first.
    """
    if request.headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        return True
    origin, host = request.headers.get(b"origin"), request.headers.get(b"host")
    own = None if host is None else parse_host(host)
    return origin is not None and parse_origin(origin) != own
