"""Ollama's API: `/api/chat`, `/api/generate`, `/api/embed` and the paths around them.

    decode             requests that chat and complete a prompt, into a `Request`
    messages           their messages, with images and tool calls
    options            their `options`, into sampling fields
    keep_alive         how long a model stays loaded after a request
    encode             the response: lines of JSON, or one object
    embed              embeddings
    management         requests that pull, create, copy, show and delete models
    installed_models   what is shown of models: lists, descriptions, progress
    errors             an error is a string

Streams are lines of JSON without a frame for silence: clients parse every line. The two kinds of
requests that generate differ in their bodies alone, so there are two dialects of one name.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dragoman.protocols.dialect import AnswerInfo, Dialect, DialectContext, pass_strict
from dragoman.protocols.ollama.decode import (
    ModelLoad,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaRequest,
    decode_chat,
    decode_generate,
)
from dragoman.protocols.ollama.encode import (
    CHAT_LINE,
    GENERATE_LINE,
    OllamaChatResponse,
    OllamaEncoder,
    OllamaGenerateResponse,
    encode_load,
    make_chat_response,
    make_generate_response,
)
from dragoman.protocols.ollama.errors import encode_error
from dragoman.types import Request

__all__ = [
    "DIALECT",
    "GENERATE_DIALECT",
    "VERSION",
    "ModelLoad",
    "OllamaChatRequest",
    "OllamaChatResponse",
    "OllamaGenerateRequest",
    "OllamaGenerateResponse",
    "OllamaRequest",
    "OllamaVersion",
    "encode_error",
    "encode_load",
    "make_chat_response",
    "make_generate_response",
]

NDJSON = b"application/x-ndjson"
VERSION = "0.14.0"  # of Ollama, whose API this is: clients compare it with the one they need


class OllamaVersion(Struct):
    """The version of Ollama whose API is served."""

    version: str


def _make_chat_encoder(request: Request, answer: AnswerInfo, _: DialectContext) -> OllamaEncoder:
    return OllamaEncoder(request, answer, make_chat_response, CHAT_LINE)


def _make_generate_encoder(
    request: Request, answer: AnswerInfo, _: DialectContext
) -> OllamaEncoder:
    return OllamaEncoder(request, answer, make_generate_response, GENERATE_LINE)


DIALECT: Dialect[OllamaRequest] = Dialect(
    name="ollama",
    decode=pass_strict(decode_chat),
    make_encoder=_make_chat_encoder,
    encode_error=encode_error,
    stream_content_type=NDJSON,
    keep_alive_frame=b"",
    accepts_form_type=True,
)
GENERATE_DIALECT: Dialect[OllamaRequest] = replace(
    DIALECT, decode=pass_strict(decode_generate), make_encoder=_make_generate_encoder
)
