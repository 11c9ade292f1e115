"""Batches: OpenAI's `/v1/batches`, requests that are read from a file of JSON lines.

decode   the request that creates a batch
lines    a line of the input file, and the lines of the output file and the error file
encode   a batch, and pages of batches
"""

from __future__ import annotations

from dragoman.protocols.batches.decode import ENDPOINTS, BatchRequest, NewBatch, decode_new
from dragoman.protocols.batches.encode import (
    BatchErrorData,
    BatchObject,
    BatchUsage,
    RequestCounts,
    encode_batch,
    encode_batch_list,
    encode_errors,
)
from dragoman.protocols.batches.lines import (
    BatchLine,
    LineAnswer,
    LineProblem,
    decode_line,
    encode_answer,
    encode_unanswered,
    read_usage,
)
from dragoman.protocols.dialect import Dialect, pass_strict
from dragoman.protocols.shared import openai

__all__ = [
    "DIALECT",
    "ENDPOINTS",
    "BatchErrorData",
    "BatchLine",
    "BatchObject",
    "BatchRequest",
    "BatchUsage",
    "LineAnswer",
    "LineProblem",
    "NewBatch",
    "RequestCounts",
    "decode_line",
    "decode_new",
    "encode_answer",
    "encode_batch",
    "encode_batch_list",
    "encode_errors",
    "encode_unanswered",
    "read_usage",
]

DIALECT: Dialect[NewBatch] = Dialect(
    name="batches", decode=pass_strict(decode_new), encode_error=openai.encode_error
)
