"""HTTP: the app as one ASGI callable, and its table of routes.

An `App` can be served by `server` or mounted at any path of somebody else's app. A request passes
the layers of `middleware`, is looked up in `routes`, and ends in `answer` if something must be
generated, else in `services`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from dragoman.config import LOOPBACK
from dragoman.errors import DragomanError, ModelLoading, Unavailable, UnsupportedMedia
from dragoman.http.asgi import Receive, RequestContext, Scope, Send
from dragoman.http.auth import ApiKeys
from dragoman.http.metrics import Metrics, ModelState, ReplayState
from dragoman.http.middleware import HostGuard, KeyGuard, RequestMiddleware, get_request, parse_host
from dragoman.http.respond import Responder
from dragoman.http.router import Handler, Route, Router
from dragoman.http.routes.chat import Chats
from dragoman.http.routes.responses import Stateful
from dragoman.http.routes.services import Services
from dragoman.http.stream import StreamClock
from dragoman.http.websocket import WebSocketSessions
from dragoman.protocols import Dialect, completions, embeddings, messages, models, tokenize
from dragoman.responses.background import BackgroundRuns
from dragoman.responses.run import CompletionRun
from dragoman.responses.service import ResponseService
from dragoman.runtime import Runtime

LARGE = 1 << 20  # bytes of a body that takes its time to read
T = TypeVar("T")


class App:
    """The server as an ASGI callable."""

    def __init__(
        self,
        runtime: Runtime,
        keys: ApiKeys,
        local: bool,
    ) -> None:
        self.runtime = runtime
        self.services = services = runtime.services
        self.models = services.models
        self.settings = settings = runtime.settings
        clock = StreamClock(settings.patience, settings.ping)
        self.metrics = Metrics(
            self._states, lambda: len(clock), lambda: services.compiler.stats, self._recalls
        )
        self.responder = Responder(clock, self.metrics)
        self.websockets = WebSocketSessions(settings.body_limit)
        self.state = runtime.state
        background = BackgroundRuns(
            lambda: self.responder.runs.track(None),
            lambda: self.responder.start_timer().record,
            self.metrics.count_error,
        )
        self.desk = ResponseService(services, self.state, background, runtime.remote_tools)
        self.router = Router(self._table())
        allowed = {parse_host(host.encode()) or "" for host in settings.allowed_host}
        hosts = frozenset({*LOOPBACK, "[::1]", *allowed}) if local else None
        guarded = KeyGuard(self._dispatch, keys)
        self.awaited: str | None = None  # a model that must be loaded before we are ready
        self._app = RequestMiddleware(HostGuard(guarded, hosts), self.metrics, self.router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def aclose(self) -> None:
        await self.desk.aclose()
        await self.runtime.aclose()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.router.dispatch(get_request(scope))

    def drain(self, seconds: float) -> None:
        """Take no new work; what runs may go on."""
        self.responder.drain_seconds = seconds
        self.websockets.drain(seconds)

    def not_ready(self) -> DragomanError | None:
        """Why requests cannot be served now, if they cannot."""
        if self.responder.drain_seconds is not None:
            return self.responder.make_draining_error()
        if self.awaited is not None:
            if self.models.get(self.awaited).state != "ready":
                return ModelLoading(f"The model `{self.awaited}` is loading.", retry_after=1)
            self.awaited = None
        down = [state.model for state in self._states() if not state.up]
        if down:
            return Unavailable(f"The engine of `{down[0]}` is being restarted.", retry_after=1)
        return None

    def _recalls(self) -> ReplayState:
        if self.services.replay is None:
            return ReplayState()
        now = self.services.replay.stats
        return ReplayState(now.tokens, now.known, now.recalled, now.lost)

    def _states(self) -> Iterator[ModelState]:
        for model in self.models.list_loaded():
            engine: Any = model.engine
            up = getattr(engine, "state", "ready") == "ready"
            restarts = getattr(engine, "restarts", 0)
            gate = self.services.admission.get_gate(model)
            yield ModelState(model.id, up, gate.running, gate.waiting, restarts)

    async def body(self, exchange: RequestContext) -> bytes:
        """The JSON body of a request."""
        kind = (exchange.header(b"content-type") or b"application/json").partition(b";")[0]
        packed = exchange.header(b"content-encoding") or b"identity"
        if not kind.strip().lower().endswith(b"json") or packed.lower() != b"identity":
            raise UnsupportedMedia("Send the body as plain `application/json`.")
        return await exchange.read_body(self.settings.body_limit, self.settings.receive_timeout)

    async def read(self, exchange: RequestContext, decode: Callable[[bytes, bool], T]) -> T:
        """What a request says."""
        return await self.decoded(await self.body(exchange), decode)

    async def decoded(self, body: bytes, decode: Callable[[bytes, bool], T]) -> T:
        """The same of its body; the event loop does not wait for a large one."""
        if len(body) <= LARGE:
            return decode(body, self.settings.strict_params)
        return await asyncio.to_thread(decode, body, self.settings.strict_params)

    def _generating(self, dialect: Dialect) -> Handler:
        async def handler(exchange: RequestContext) -> None:
            said = await self.read(exchange, dialect.decode)
            request = replace(said, owner=exchange.owner)
            await self.responder.respond(
                exchange, lambda: CompletionRun.prepare(dialect, request, self.services)
            )

        return handler

    def _table(self) -> list[Route]:
        do = Services(self)
        return [
            *Chats(self).routes(),
            Route(
                path="/v1/completions",
                method="POST",
                handler=self._generating(completions),
                summary="Go on with a prompt.",
                request_type=completions.CompletionRequest,
                response_type=completions.TextCompletion,
                streams=True,
            ),
            Route(
                path="/v1/embeddings",
                method="POST",
                handler=do.embed,
                summary="Turn texts into vectors.",
                request_type=embeddings.EmbeddingRequest,
                response_type=embeddings.EmbeddingList,
            ),
            *self._messages(do),
            *Stateful(self).routes(),
            *self._small(do),
            *self._administration(do),
        ]

    @staticmethod
    def _messages(do: Services) -> list[Route]:
        return [
            Route(
                path="/v1/messages",
                method="POST",
                handler=do.message,
                summary="Go on with a conversation, in the Messages dialect.",
                request_type=messages.MessagesRequest,
                response_type=messages.MessageResponse,
                streams=True,
                error=messages.encode_error,
                status=messages.error_status,
            ),
            Route(
                path="/v1/messages/count_tokens",
                method="POST",
                handler=do.count_tokens,
                summary="Count the tokens of a conversation.",
                request_type=messages.CountTokensRequest,
                response_type=messages.TokenCount,
                error=messages.encode_error,
                status=messages.error_status,
            ),
        ]

    @staticmethod
    def _small(do: Services) -> list[Route]:
        def get(path: str, handler: Handler, summary: str, **more: Any) -> Route:
            return Route(path=path, method="GET", handler=handler, summary=summary, **more)

        def listed(path: str, handler: Handler, summary: str, answer: Any) -> Route:
            return get(path, handler, summary, answer=answer, other_error=messages.encode_error)

        return [
            listed("/v1/models", do.list_models, "All models.", models.ModelList),
            listed("/v1/models/{model...}", do.one_model, "One model.", models.ModelCard),
            Route(
                path="/tokenize",
                method="POST",
                handler=do.tokenize,
                summary="Turn a text or a conversation into token ids.",
                request_type=tokenize.TokenizeRequest,
                response_type=tokenize.TokenizeResponse,
            ),
            Route(
                path="/detokenize",
                method="POST",
                handler=do.detokenize,
                summary="Turn token ids into text.",
                request_type=tokenize.DetokenizeRequest,
                response_type=tokenize.DetokenizeResponse,
            ),
            get(
                "/tokenizer_info",
                do.tokenizer_info,
                "What the served model's tokenizer is.",
                answer=tokenize.TokenizerInfo,
            ),
            get("/metrics", do.metrics, "Measurements, for Prometheus."),
            get("/openapi.json", do.openapi, "This document."),
            get("/docs", do.docs, "This document as a page.", access="open"),
            get("/health", do.ready, "Same as `/health/ready`.", access="open"),
            get("/health/live", do.live, "The process answers.", access="open"),
            get("/health/ready", do.ready, "Requests can be served.", access="open"),
            get("/", do.hello, "Says that a server is here.", access="open"),
        ]

    @staticmethod
    def _administration(do: Services) -> list[Route]:
        return [
            Route(
                path=f"/admin/models/{verb}",
                method="POST",
                handler=handler,
                summary=summary,
                access="admin",
                request_type=models.ModelName,
                response_type=models.ModelCard,
            )
            for verb, handler, summary in (
                ("load", do.load, "Load a model now."),
                ("unload", do.unload, "Unload a model once its answers are finished."),
            )
        ]
