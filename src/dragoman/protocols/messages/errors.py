"""Errors in the words of this dialect: a type for each status, and no field but the message.

Because there is no other place for it, the field that is to blame is named in the message. Some
sentences are known to clients by heart and are said as they expect them.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.errors import ContextOverflow, DragomanError, Unavailable
from dragoman.protocols.shared.openai import encode

OVERLOADED = 529
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


class MessagesErrorBody(Struct):
    """What went wrong, in words."""

    type: str
    message: str


class MessagesErrorResponse(Struct):
    type: str
    error: MessagesErrorBody
    request_id: str | None


def error_status(failure: DragomanError) -> int:
    """What cannot be served now is called overload here."""
    return OVERLOADED if isinstance(failure, Unavailable) else failure.status


def encode_error(failure: DragomanError, request_id: str | None = None) -> bytes:
    number = error_status(failure)
    kind = TYPES.get(number, "invalid_request_error" if number < 500 else "api_error")
    return encode(
        MessagesErrorResponse("error", MessagesErrorBody(kind, _message(failure)), request_id)
    )


def _message(failure: DragomanError) -> str:
    said, param = failure.message, failure.param
    if isinstance(failure, ContextOverflow):
        return _too_long(said)
    if param is not None and failure.code == "missing_required_parameter":
        return f"{param}: Field required"
    return said if param is None or param in said else f"{param}: {said}"


def _too_long(said: str) -> str:
    """The sentence at which agents make their conversation shorter."""
    numbers = sorted(int(number) for number in re.findall(r"\d+", said))
    if len(numbers) < 2:
        return f"prompt is too long: {said}"
    return f"prompt is too long: {numbers[-1]} tokens > {numbers[0]} maximum"
