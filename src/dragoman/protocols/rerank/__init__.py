"""Reranking: Jina's and Cohere's `/v1/rerank` and `/v2/rerank`, and vLLM's `/v1/score`.

decode    the request bodies, into a `RerankInput` or a `ScoreInput`
encode    results, best first; scores, in the order of the pairs

The bodies of Jina, Cohere, vLLM and llama-server differ in optional fields only, so one request and
one response serve all of their clients. `/v2/rerank` is Cohere's: a document is cut to 4,096 tokens
unless the request says otherwise, and an error has a `message` at its top level, too.
"""

from __future__ import annotations

from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.rerank.decode import (
    RerankInput,
    RerankRequest,
    ScoreInput,
    ScoreRequest,
    decode_rerank,
    decode_rerank_v2,
    decode_score,
)
from dragoman.protocols.rerank.encode import (
    RerankResponse,
    ScoreResponse,
    encode_cohere_error,
    encode_rerank,
    encode_scores,
)
from dragoman.protocols.shared import openai

__all__ = [
    "COHERE",
    "RERANK",
    "SCORE",
    "RerankInput",
    "RerankRequest",
    "RerankResponse",
    "ScoreInput",
    "ScoreRequest",
    "ScoreResponse",
    "encode_rerank",
    "encode_scores",
]

RERANK: Dialect[RerankInput] = Dialect(
    name="rerank", decode=pass_strict(decode_rerank), encode_error=openai.encode_error
)
COHERE: Dialect[RerankInput] = Dialect(
    name="rerank", decode=pass_strict(decode_rerank_v2), encode_error=encode_cohere_error
)
SCORE: Dialect[ScoreInput] = Dialect(
    name="rerank", decode=pass_strict(decode_score), encode_error=openai.encode_error
)
