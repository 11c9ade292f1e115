"""Routes of embeddings."""

from __future__ import annotations

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.context import RouteContext
from dragoman.pipeline.embed import embed
from dragoman.protocols.embeddings import (
    DIALECT,
    EmbeddingList,
    EmbeddingRequest,
    encode_embeddings,
)


def make_routes(context: RouteContext) -> list[Route]:
    services = context.runtime.services

    async def create(request: RequestContext) -> None:
        decoded = await context.reader.read_and_decode(request, DIALECT.decode)
        async with context.responder.track(request.wait_disconnected):
            model, vectors, usage = await embed(
                decoded.model, decoded.inputs, services, request.owner
            )
        request.record.usage = usage
        context.observer.get_model(model).usage += usage
        body = encode_embeddings(decoded, model, vectors, usage.prompt)
        await request.send_response(200, body)

    group = RouteGroup("/v1/embeddings", DIALECT)
    return [
        group.make(
            "POST",
            "",
            create,
            "Create embeddings.",
            request_type=EmbeddingRequest,
            response_type=EmbeddingList,
        )
    ]
