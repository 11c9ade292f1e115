"""Encode scores: reranked documents, best first, or the scores of pairs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.errors import DragomanError
from dragoman.protocols.rerank.decode import RerankInput
from dragoman.protocols.shared import openai
from dragoman.types import Json


class ScoringUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class RerankResult(Struct):
    index: int
    relevance_score: float
    document: dict[str, Json] | UnsetType = UNSET


class ApiVersion(Struct):
    version: str


class BilledUnits(Struct):
    search_units: int


class InputTokens(Struct):
    input_tokens: int


class RerankMeta(Struct):
    """What Cohere's clients read."""

    api_version: ApiVersion
    billed_units: BilledUnits
    tokens: InputTokens


class RerankResponse(Struct):
    """Documents by their relevance, best first."""

    id: str
    object: str
    model: str
    results: list[RerankResult]
    usage: ScoringUsage
    meta: RerankMeta


class PairScore(Struct):
    index: int
    object: str
    score: float


class ScoreResponse(Struct):
    """Scores in the order of the pairs."""

    id: str
    object: str
    created: int
    model: str
    data: list[PairScore]
    usage: ScoringUsage


def encode_rerank(
    request: RerankInput, model: str, scores: Sequence[float], tokens: int, version: str
) -> bytes:
    """Encode the best documents; of two with the same score, the first one comes first."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    results = [
        RerankResult(
            index, scores[index], request.documents[index] if request.return_documents else UNSET
        )
        for index in order[: request.top_n]
    ]
    meta = RerankMeta(ApiVersion(version), BilledUnits(1), InputTokens(tokens))
    usage = ScoringUsage(tokens, tokens)
    identifier = f"rerank-{uuid.uuid4().hex}"
    return openai.encode(RerankResponse(identifier, "list", model, results, usage, meta))


def encode_scores(model: str, scores: Sequence[float], tokens: int) -> bytes:
    data = [PairScore(index, "score", score) for index, score in enumerate(scores)]
    return openai.encode(
        ScoreResponse(
            f"score-{uuid.uuid4().hex}",
            "list",
            int(time.time()),
            model,
            data,
            ScoringUsage(tokens, tokens),
        )
    )


def encode_cohere_error(error: DragomanError, request_id: str) -> bytes:
    """Encode an error as Cohere does, with the error object of the other routes beside it."""
    fields: dict[str, Json] = msgspec.json.decode(openai.encode_error(error, request_id))
    return msgspec.json.encode({"id": request_id, "message": error.message, **fields})
