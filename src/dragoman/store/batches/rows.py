"""The data types of stored files and batches."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.errors import DragomanError
from dragoman.events import Usage

BatchStatus: TypeAlias = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


class StoredFile(Struct, kw_only=True, frozen=True):
    """A file without its content."""

    id: str
    owner: str
    purpose: str
    filename: str
    created: int
    expires: float
    bytes: int = 0  # of its content
    complete: bool = False
    batch: str | None = None  # the batch that writes it


class StoredBatch(Struct, kw_only=True, frozen=True):
    """A batch; the fields are the columns of its table."""

    id: str
    owner: str
    status: BatchStatus = "validating"
    endpoint: str
    completion_window: str
    input_file: str
    output_file: str | None = None  # exists from when it is in progress
    error_file: str | None = None
    output_ttl: float | None = None
    model: str | None = None
    created: int
    ended: float | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expires_at: int
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0  # lines; 0 until all of them are validated
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    metadata: bytes = b"{}"
    errors: bytes | None = None  # why it failed, as JSON


class LineResult(Struct, frozen=True):
    """The answer to one line of a batch."""

    number: int  # of the line, from 1
    data: bytes  # a line of the output file, or of the error file
    has_failed: bool = False
    usage: Usage = Usage()


class LeaseLost(DragomanError):
    """Another server has taken over the batch."""
