"""Chat, generate, embed, and loading a model without doing either.

`keep_alive` changes what other clients of the server notice, so it has an effect only for those who
may use the admin routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from dragoman.errors import Forbidden
from dragoman.events import Usage
from dragoman.http.asgi import RequestContext
from dragoman.http.auth import make_audit_fields
from dragoman.http.router import Handler, Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.pipeline.pooling.embed import embed
from dragoman.protocols import ollama
from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.ollama import DIALECT, GENERATE_DIALECT, ModelLoad, OllamaRequest
from dragoman.protocols.ollama.embed import (
    EmbeddingsEncoder,
    EmbedEncoder,
    OllamaEmbeddingsRequest,
    OllamaEmbeddingsResponse,
    OllamaEmbedRequest,
    OllamaEmbedResponse,
    decode_embed,
    decode_embeddings,
)
from dragoman.protocols.ollama.encode import DoneReason, MakeAnswer
from dragoman.protocols.shared.openai import encode
from dragoman.responses.run import CompletionRun
from dragoman.telemetry.record import get_record
from dragoman.types import Request
from dragoman.types.pooling_tasks import EmbeddingTask
from dragoman.types.worker_threads import run_in_worker

T = TypeVar("T", Request, EmbeddingTask, ModelLoad)


class OllamaHandlers:
    """Handlers that generate, embed, and load models without doing either."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context
        self._services = context.runtime.services

    async def get_version(self, request: RequestContext) -> None:
        await request.send_response(200, encode(ollama.OllamaVersion(ollama.VERSION)))

    def make_generation_handler(
        self, dialect: Dialect[OllamaRequest], make_answer: MakeAnswer
    ) -> Handler:
        reader, responder, services = self._context.reader, self._context.responder, self._services

        async def handle(request: RequestContext) -> None:
            context = await reader.make_context(request)
            body = await reader.read(request)
            decoded = await reader.decode(request, body, dialect.decode, context)
            if isinstance(decoded, ModelLoad):
                reason = await self._load(request, decoded)
                model = decoded.model or services.models.default_name
                await request.send_response(200, ollama.encode_load(make_answer, model, reason))
                return
            generation = replace(check_keep_alive(request, decoded), owner=request.owner)
            await responder.respond(
                request, lambda: CompletionRun.prepare(dialect, context, generation, services)
            )

        return handle

    async def embed(self, request: RequestContext) -> None:
        task = await self._context.reader.read_and_decode(request, pass_strict(decode_embed))
        await self._embed(request, task, EmbedEncoder(task.dimensions))

    async def embed_text(self, request: RequestContext) -> None:
        decode = pass_strict(decode_embeddings)
        task = await self._context.reader.read_and_decode(request, decode)
        await self._embed(request, task, EmbeddingsEncoder())

    async def _embed(
        self, request: RequestContext, task: EmbeddingTask, encoder: EmbedEncoder
    ) -> None:
        request.warnings += task.warnings
        if not task.inputs:
            await self._load(request, ModelLoad(task.model, task.keep_alive))
            usage = Usage()
        else:
            usage = await self._embed_inputs(request, task, encoder)
        times, model = get_record().measure_answer(), task.model.strip() or request.record.model
        body = await run_in_worker(encoder.encode_whole, model, usage, times)
        await request.send_response(200, body)

    async def _embed_inputs(
        self, request: RequestContext, task: EmbeddingTask, encoder: EmbedEncoder
    ) -> Usage:
        task = replace(check_keep_alive(request, task), owner=request.owner)

        async def deliver(vectors: Sequence[list[float]]) -> None:
            await run_in_worker(encoder.add, vectors)

        with self._context.responder.track(request):
            _, usage = await embed(task, self._services, deliver)
        request.record.usage = usage
        self._context.observer.get_model(request.record.model).usage += usage
        return usage

    async def _load(self, request: RequestContext, load: ModelLoad) -> DoneReason:
        """Load a model, or unload it."""
        models = self._services.models
        request.record.requested_model = load.model
        if load.keep_alive == 0:
            if not request.is_admin:
                raise Forbidden("Unloading a model with `keep_alive` needs an admin key.")
            entry = await models.unload(load.model, owner=request.owner)
            fields = make_audit_fields(request) | {"model": entry.id}
            self._context.runtime.audit.record("unload", fields)
            return "unload"
        load = check_keep_alive(request, load)
        with self._context.responder.track(request), request.record.measure("resolve"):
            lease = await models.acquire(
                load.model, owner=request.owner, keep_alive=load.keep_alive
            )
        request.record.model = lease.model.id
        lease.release()
        return "load"


def check_keep_alive(request: RequestContext, decoded: T) -> T:
    """Drop a `keep_alive` that the client may not set, with a warning."""
    if decoded.keep_alive is None or request.is_admin:
        return decoded
    request.warnings.append("`keep_alive` has no effect: it needs an admin key.")
    return replace(decoded, keep_alive=None)


def make_routes(context: RouteContext) -> list[Route]:
    handlers = OllamaHandlers(context)
    group, generate_group = RouteGroup("/api", DIALECT), RouteGroup("/api", GENERATE_DIALECT)
    return [
        group.make(
            "GET",
            "/version",
            handlers.get_version,
            "Get the version of Ollama's API.",
            response_type=ollama.OllamaVersion,
        ),
        group.make(
            "POST",
            "/chat",
            handlers.make_generation_handler(DIALECT, ollama.make_chat_response),
            "Continue a conversation, as Ollama does.",
            request_type=ollama.OllamaChatRequest,
            response_type=ollama.OllamaChatResponse,
            streams=True,
        ),
        generate_group.make(
            "POST",
            "/generate",
            handlers.make_generation_handler(GENERATE_DIALECT, ollama.make_generate_response),
            "Answer a prompt, as Ollama does.",
            request_type=ollama.OllamaGenerateRequest,
            response_type=ollama.OllamaGenerateResponse,
            streams=True,
        ),
        group.make(
            "POST",
            "/embed",
            handlers.embed,
            "Embed texts, as Ollama does.",
            request_type=OllamaEmbedRequest,
            response_type=OllamaEmbedResponse,
        ),
        group.make(
            "POST",
            "/embeddings",
            handlers.embed_text,
            "Embed one text, as older versions of Ollama do.",
            request_type=OllamaEmbeddingsRequest,
            response_type=OllamaEmbeddingsResponse,
        ),
    ]
