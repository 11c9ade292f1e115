"""Encode errors of the Messages API: a type for each status, and a message.

There is no field for it, so the message names the field that caused the error. Clients recognize
some messages by their exact text; those are written as clients expect them.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.errors import ContextOverflow, DragomanError, MissingParameter, Unavailable
from dragoman.protocols.shared.openai import encode

OVERLOADED = 529
NOTE = re.compile(r" \([^)]*\)")  # in the message of a long prompt, about the trained context
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


class MessagesErrorBody(Struct):
    """What went wrong."""

    type: str
    message: str


class MessagesErrorResponse(Struct):
    type: str
    error: MessagesErrorBody
    request_id: str | None


def get_error_status(error: DragomanError) -> int:
    """Return the status of an error; this API has its own status for an overloaded server."""
    return OVERLOADED if isinstance(error, Unavailable) else error.status


def encode_error(error: DragomanError, request_id: str | None = None) -> bytes:
    status = get_error_status(error)
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    body = MessagesErrorBody(kind, _make_message(error))
    return encode(MessagesErrorResponse("error", body, request_id))


def _make_message(error: DragomanError) -> str:
    message, param = error.message, error.param
    if isinstance(error, ContextOverflow):
        return _make_overflow_message(message)
    if param is not None and isinstance(error, MissingParameter):
        return f"{param}: Field required"
    return message if param is None or param in message else f"{param}: {message}"


def _make_overflow_message(message: str) -> str:
    """Return the message that tells agents to shorten their conversation."""
    note = NOTE.search(message)
    numbers = sorted(int(number) for number in re.findall(r"\d+", NOTE.sub("", message)))
    if len(numbers) < 2:
        return f"prompt is too long: {message}"
    more = note[0] if note is not None else ""
    return f"prompt is too long: {numbers[-1]} tokens > {numbers[0]} maximum{more}"
