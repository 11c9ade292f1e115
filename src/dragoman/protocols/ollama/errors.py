"""Encode errors of Ollama's API: an object with one string.

There is no field for it, so the text names the field that caused the error. Clients recognize a
missing model by its text, which is written as they expect it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.errors import DragomanError, ModelNotFound
from dragoman.protocols.shared.openai import encode

_UNKNOWN_MODEL = re.compile(r"\AThe model `(?P<name>[^`]*)` does not exist\.")


class OllamaError(Struct):
    """What went wrong."""

    error: str


def encode_error(error: DragomanError, request_id: str | None = None) -> bytes:
    return encode(OllamaError(make_error_text(error)))


def make_error_text(error: DragomanError) -> str:
    message, param = error.message, error.param
    if isinstance(error, ModelNotFound):
        return _UNKNOWN_MODEL.sub(r"model '\g<name>' not found.", message)
    return message if param is None or param in message else f"{param}: {message}"
