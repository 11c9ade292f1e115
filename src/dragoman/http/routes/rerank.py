"""Routes that rerank documents and score pairs of texts."""

from __future__ import annotations

from functools import partial

from dragoman.http.asgi import RequestContext
from dragoman.http.router import Route, RouteGroup
from dragoman.http.routes.shared.context import RouteContext
from dragoman.pipeline.pooling.score import ScoreResult, score
from dragoman.protocols.dialect import Dialect
from dragoman.protocols.rerank import (
    COHERE,
    RERANK,
    SCORE,
    RerankInput,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
    encode_rerank,
    encode_scores,
)
from dragoman.types.pooling_tasks import ScoreTask

COSINE = (
    "This model embeds texts and has no rank head: scores are cosine similarities of embeddings."
)


class RerankHandlers:
    """Handlers that score texts."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context

    async def rerank(
        self, request: RequestContext, dialect: Dialect[RerankInput], version: str
    ) -> None:
        decoded = await self._context.reader.read_and_decode(request, dialect.decode)
        task = ScoreTask(
            model=decoded.model,
            pairs=decoded.pairs,
            document_tokens=decoded.document_tokens,
            pair_tokens=decoded.pair_tokens,
            owner=request.owner,
        )
        result = await self._score(request, task)
        body = encode_rerank(decoded, result.model, result.scores, result.usage.prompt, version)
        await request.send_response(200, body)

    async def score(self, request: RequestContext) -> None:
        decoded = await self._context.reader.read_and_decode(request, SCORE.decode)
        task = ScoreTask(
            model=decoded.model,
            pairs=decoded.pairs,
            pair_tokens=decoded.pair_tokens,
            owner=request.owner,
        )
        result = await self._score(request, task)
        body = encode_scores(result.model, result.scores, result.usage.prompt)
        await request.send_response(200, body)

    async def _score(self, request: RequestContext, task: ScoreTask) -> ScoreResult:
        context = self._context
        with context.responder.track(request):
            result = await score(task, context.runtime.services)
        request.record.usage = result.usage
        context.observer.get_model(request.record.model).usage += result.usage
        if result.is_cosine:
            request.warnings.append(COSINE)
        return result


def make_routes(context: RouteContext) -> list[Route]:
    handlers = RerankHandlers(context)
    return [
        RouteGroup("/v1/rerank", RERANK).make(
            "POST",
            "",
            partial(handlers.rerank, dialect=RERANK, version="1"),
            "Rerank documents.",
            request_type=RerankRequest,
            response_type=RerankResponse,
        ),
        RouteGroup("/v2/rerank", COHERE).make(
            "POST",
            "",
            partial(handlers.rerank, dialect=COHERE, version="2"),
            "Rerank documents with Cohere's defaults.",
            request_type=RerankRequest,
            response_type=RerankResponse,
        ),
        RouteGroup("/v1/score", SCORE).make(
            "POST",
            "",
            handlers.score,
            "Score pairs of texts.",
            request_type=ScoreRequest,
            response_type=ScoreResponse,
        ),
    ]
