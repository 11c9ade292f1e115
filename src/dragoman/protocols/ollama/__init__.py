"""Ollama's API: `/api/chat`, `/api/generate`, `/api/embed` and the paths around them.

errors        an error is a string
keep_alive    how long a model stays loaded after a request
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.protocols.dialect import Dialect
from dragoman.protocols.ollama.errors import encode_error

__all__ = ["DIALECT", "VERSION", "OllamaVersion", "encode_error"]

NDJSON = b"application/x-ndjson"
VERSION = "0.14.0"  # of Ollama, whose API this is: clients compare it with the one they need


class OllamaVersion(Struct):
    """The version of Ollama whose API is served."""

    version: str


DIALECT: Dialect[object] = Dialect(
    name="ollama", encode_error=encode_error, stream_content_type=NDJSON
)
