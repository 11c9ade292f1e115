"""What goes wrong between us and an upstream server, and what clients learn about it.

A `ConnectionFailure` is a matter of the network or of the server's life. A `StatusFailure` is an
answer with an error status. An `InvalidFrame` is an answer that breaks the server's own protocol.
Their texts go to the log: they may contain addresses. Clients get an error of ours instead.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal, TypeAlias

import msgspec

from dragoman.engines.limits import make_context_overflow
from dragoman.errors import (
    BadRequest,
    DragomanError,
    EngineDown,
    EngineFailed,
    ModelBroken,
    Overloaded,
    Unavailable,
)
from dragoman.types import Capabilities, Json

NO_IDS = "the answer has no token ids: this server ignores the field that asks for them"
FailureKind: TypeAlias = Literal["refused", "tls", "closed", "stalled", "invalid"]
MAX_RETRY_AFTER = 3600.0
TEMPORARY_STATUSES = (408, 425, 502, 503, 504)
DEFAULT_RETRY_AFTER = 1.0
THREE_DIGITS = re.compile("[45][0-9][0-9]", re.ASCII)
# what decoding raises: invalid JSON, invalid UTF-8 inside, too many levels
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# parts of the messages with which servers reject a prompt that is too long
CONTEXT_MESSAGES = ("context length", "context size", "exceed_context", "longer than the maximum")


class UpstreamFailure(Exception):
    """Base class; the text is for the log."""


class ConnectionFailure(UpstreamFailure):
    """No answer, or not all of it."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def is_broken(self) -> bool:
        """Whether the network or the server ended it, and the same request may succeed again."""
        return self.kind in ("refused", "closed")


class InvalidFrame(UpstreamFailure):
    """A part of an answer that the protocol does not allow."""


class StatusFailure(UpstreamFailure):
    """An answer with an error status, or an error inside a stream."""

    def __init__(self, status: int, body: bytes, headers: Mapping[bytes, bytes]) -> None:
        super().__init__(f"status {status}: {body[:300].decode(errors='replace')}")
        self.status = status
        self.text = read_message(body)
        self.retry_after = _parse_retry_after(headers.get(b"retry-after"))

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later; statuses above 505 are those of proxies."""
        return self.status in TEMPORARY_STATUSES or self.status > 505


# codes and types of errors that are words, and the statuses that they stand for
WORD_STATUSES = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "overloaded": 503,
    "overloaded_error": 503,
    "server_overloaded": 503,
    "service_unavailable": 503,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
}


def make_stream_error(error: Json) -> StatusFailure:
    """Return the error that a server sends inside a stream, as if it were a status."""
    fields = error if isinstance(error, dict) else {}
    words = [str(fields.get(name, "")).lower() for name in ("code", "status", "type")]
    found = [
        int(word) if THREE_DIGITS.fullmatch(word) else WORD_STATUSES.get(word) for word in words
    ]
    status = next((status for status in found if status is not None), 500)
    return StatusFailure(status, b'{"error":' + msgspec.json.encode(error) + b"}", {})


def read_message(body: bytes) -> str:
    """Return the message in the error object of a server, or the text itself."""
    try:
        data = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return body[:1000].decode(errors="replace")
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        parts = (error.get("type"), error.get("message"), error.get("detail"))
        return " ".join(str(part) for part in parts if part)
    return str(error)


def _parse_retry_after(value: bytes | None) -> float:
    """Return the seconds of a `Retry-After`: a number or a date; all else is the default."""
    text = (value or b"").decode(errors="replace")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError, OSError):
            return DEFAULT_RETRY_AFTER
    return min(max(seconds, 0.0), MAX_RETRY_AFTER) if seconds == seconds else DEFAULT_RETRY_AFTER


def convert_failure(
    failure: UpstreamFailure, capabilities: Capabilities, prompt_tokens: int
) -> DragomanError:
    """Return the error that a request fails with."""
    match failure:
        case StatusFailure():
            return _convert_status(failure, capabilities, prompt_tokens)
        case ConnectionFailure(kind="stalled"):
            return EngineDown("The upstream server made no progress on this request.")
        case ConnectionFailure(kind="closed"):
            return EngineDown("The upstream server stopped before the answer was finished.")
        case ConnectionFailure(kind="refused" | "tls"):
            return EngineDown("The upstream server cannot be reached.")
    return EngineFailed("The upstream server returned an invalid answer.")


def make_refusal(failure: UpstreamFailure, capabilities: Capabilities) -> DragomanError:
    """Return why a server cannot be used: `ModelBroken`, unless it may be up later."""
    if str(failure) == NO_IDS:
        return ModelBroken(
            "The upstream server returns no token ids: its version ignores the field that asks "
            "for them."
        )
    match failure:
        case StatusFailure(status=401 | 403):
            return ModelBroken("The upstream server refuses the API key, or has none.")
        case ConnectionFailure(kind="tls"):
            return ModelBroken("The certificate of the upstream server cannot be verified.")
        case ConnectionFailure(kind="closed"):
            return EngineDown("The upstream server closes connections.", retry_after=1)
    error = convert_failure(failure, capabilities, 1)
    return error if isinstance(error, Unavailable | Overloaded) else ModelBroken(error.message)


def _convert_status(
    failure: StatusFailure, capabilities: Capabilities, prompt_tokens: int
) -> DragomanError:
    status, message = failure.status, failure.text.lower()
    if status == 429:
        return Overloaded("The upstream server is busy.", retry_after=failure.retry_after)
    if failure.is_temporary:
        return Unavailable(
            "The upstream server cannot run this request now.", retry_after=failure.retry_after
        )
    if status in (401, 403):  # not the client's key: that of this server
        return Unavailable(
            "The upstream server rejects this server's API key.", retry_after=failure.retry_after
        )
    if 300 <= status < 400:
        return EngineFailed("The upstream server redirects requests; redirects are not followed.")
    if status in (400, 413, 422):
        if any(part in message for part in CONTEXT_MESSAGES):
            context = capabilities.context or prompt_tokens
            return make_context_overflow(prompt_tokens, context)
        return BadRequest("The upstream server rejects this request.")
    return EngineFailed("The upstream server failed while processing this request.")
