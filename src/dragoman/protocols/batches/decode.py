"""Decode requests that create a batch."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidValue
from dragoman.protocols.files.decode import ExpiresAfter, decode_expiry
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.openai import Metadata, Name

Endpoint: TypeAlias = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
]
ENDPOINTS: tuple[str, ...] = get_args(Endpoint)
UNITS = {"m": 60, "h": 3600, "d": 24 * 3600}  # seconds
MAX_WINDOW = 14 * 24 * 3600  # seconds
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")


class BatchRequest(Struct):
    """A batch of the requests in a file."""

    input_file_id: Name
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None


class NewBatch(Struct, frozen=True):
    """A batch that a client asks for."""

    input_file: str
    endpoint: str
    completion_window: str
    seconds: int  # of the completion window
    metadata: bytes  # JSON
    output_seconds: int | None  # until its output expires


def decode_new(body: bytes, strict: bool = False) -> NewBatch:
    fields = decode_body(body, BatchRequest, strict)
    if fields.endpoint not in ENDPOINTS:
        allowed = ", ".join(f"`{name}`" for name in ENDPOINTS)
        raise InvalidValue(f"`endpoint` must be one of {allowed}.", param="endpoint")
    expiry = fields.output_expires_after
    return NewBatch(
        input_file=fields.input_file_id,
        endpoint=fields.endpoint,
        completion_window=fields.completion_window,
        seconds=_parse_window(fields.completion_window),
        metadata=msgspec.json.encode(fields.metadata or {}),
        output_seconds=None
        if expiry is None
        else decode_expiry(expiry.anchor, expiry.seconds, "output_expires_after"),
    )


def _parse_window(window: str) -> int:
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW:
        raise InvalidValue(
            "`completion_window` must be a time such as `24h`, of at most 14 days.",
            param="completion_window",
        )
    return seconds
