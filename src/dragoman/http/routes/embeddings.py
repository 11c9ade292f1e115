"""Routes of embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.pipeline.pooling.embed import embed
from dragoman.protocols.embeddings import (
    DIALECT,
    EmbeddingEncoder,
    EmbeddingList,
    EmbeddingRequest,
)
from dragoman.types.pooling_tasks import EmbeddingTask
from dragoman.types.worker_threads import run_in_worker


def make_routes(context: RouteContext) -> list[Route]:
    services = context.runtime.services

    async def create(request: RequestContext) -> None:
        decoded = await context.reader.read_and_decode(request, DIALECT.decode)
        with context.responder.track(request):
            encoder = EmbeddingEncoder(decoded)

            async def deliver(vectors: Sequence[list[float]]) -> None:
                await run_in_worker(encoder.add, vectors)

            task = EmbeddingTask(
                model=decoded.model,
                inputs=decoded.inputs,
                dimensions=decoded.dimensions,
                owner=request.owner,
            )
            model, usage = await embed(task, services, deliver)
        request.record.usage = usage
        context.observer.get_model(request.record.model).usage += usage
        body = await run_in_worker(encoder.encode_whole, model, usage.prompt)
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
