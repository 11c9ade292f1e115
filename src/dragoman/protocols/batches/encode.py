"""Encode batches and pages of batches."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct, structs

from dragoman.protocols.batches.lines import LineProblem
from dragoman.protocols.shared.openai import encode, encode_page


class BatchErrorData(Struct):
    """Why a line of the input file is invalid."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Struct):
    """Why a batch failed."""

    data: list[BatchErrorData]
    object: str = "list"


class RequestCounts(Struct):
    """How many requests of a batch have which result."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class CachedTokens(Struct):
    cached_tokens: int = 0


class ReasoningTokens(Struct):
    reasoning_tokens: int = 0


class BatchUsage(Struct):
    """The tokens of all requests of a batch."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(Struct, kw_only=True):
    """A batch."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None
    errors: Raw | None = None  # `BatchErrors`
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: Raw


def encode_batch(batch: BatchObject) -> bytes:
    return encode(batch)


def encode_batch_list(page: Sequence[BatchObject], has_more: bool) -> bytes:
    return encode_page([structs.asdict(batch) for batch in page], has_more)


def encode_errors(problems: Sequence[tuple[int | None, LineProblem]]) -> bytes:
    """Encode why a batch failed: problems with the numbers of their lines."""
    data = [
        BatchErrorData(problem.code, problem.message, problem.param, line)
        for line, problem in problems
    ]
    return encode(BatchErrors(data))
