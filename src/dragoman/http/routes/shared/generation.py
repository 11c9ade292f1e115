"""The handler of every wire API that generates an answer and stores nothing."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Handler
from dragoman.http.routes.shared.context import RouteContext
from dragoman.protocols.dialect import Dialect
from dragoman.responses.run import CompletionRun
from dragoman.types import Request


def make_generation_handler(context: RouteContext, dialect: Dialect[Request]) -> Handler:
    """Return a handler that decodes a request, generates, and encodes the answer."""
    reader, responder, services = context.reader, context.responder, context.runtime.services

    async def handle(request: RequestContext) -> None:
        dialect_context = await reader.make_context(request)
        body = await reader.read(request)
        decoded = await reader.decode(request, body, dialect.decode, dialect_context)
        generation = replace(decoded, owner=request.owner)
        await responder.respond(
            request, lambda: CompletionRun.prepare(dialect, dialect_context, generation, services)
        )

    return handle
