"""Decode the lines of an input file, and encode those of the output file and the error file."""

from __future__ import annotations

import uuid

import msgspec
from msgspec import Raw, Struct

from dragoman.events import Usage
from dragoman.protocols.json_lines import make_line
from dragoman.protocols.shared.openai import encode
from dragoman.types import Json

MAX_CUSTOM_ID = 512  # characters
FIELDS = ("custom_id", "method", "url", "body")
REJECTED = ("stream", "background")  # fields that ask for what a batch does not support


class LineProblem(Struct, frozen=True):
    """Why a line, and so its whole file, is invalid."""

    code: str
    message: str
    param: str | None = None


class BatchLine(Struct, frozen=True):
    """One request of a batch."""

    custom_id: str
    body: bytes  # JSON
    model: str | None = None
    rejected: str | None = None  # a field that a batch does not support


class LineAnswer(Struct, frozen=True):
    """The response to the request of a line."""

    status: int
    request_id: str
    body: bytes
    retry_after: float | None = None  # seconds, where it is worth trying again


class _RequestFields(Struct):
    model: Json = None
    stream: Json = None
    background: Json = None


class _TokenDetails(Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _UsageFields(Struct):
    """Usage as all endpoints spell it."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _TokenDetails | None = None
    input_tokens_details: _TokenDetails | None = None
    completion_tokens_details: _TokenDetails | None = None
    output_tokens_details: _TokenDetails | None = None


class _AnswerFields(Struct):
    usage: _UsageFields | None = None


_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_request = msgspec.json.Decoder(_RequestFields).decode
_decode_answer = msgspec.json.Decoder(_AnswerFields).decode


def decode_line(data: bytes, endpoint: str) -> BatchLine | LineProblem:
    """Decode a line of a batch for one endpoint."""
    try:
        data.decode()  # the decoder does not check what it keeps as raw JSON
        fields = _decode_fields(data)
        body = bytes(fields.get("body", b""))
        request = _decode_request(body) if body.startswith(b"{") else None
        custom_id, method, url = (_decode_text(fields.get(name)) for name in FIELDS[:3])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return LineProblem("invalid_json_line", "This line is not a valid JSON object.")
    for name in FIELDS:
        if name not in fields:
            message = f"`{name}` is required."
            return LineProblem("missing_required_parameter", message, name)
    if not custom_id or len(custom_id) > MAX_CUSTOM_ID:
        message = f"`custom_id` must be a string of 1 to {MAX_CUSTOM_ID} characters."
        return LineProblem("invalid_custom_id", message, "custom_id")
    if method != "POST":
        return LineProblem("invalid_method", "`method` must be `POST`.", "method")
    if url != endpoint:
        message = f"`url` must be the endpoint of the batch, `{endpoint}`."
        return LineProblem("invalid_url", message, "url")
    if request is None:
        return LineProblem("invalid_request", "`body` must be an object.", "body")
    model = request.model if isinstance(request.model, str) else None
    rejected = next((name for name in REJECTED if getattr(request, name) is True), None)
    return BatchLine(custom_id, body, model, rejected)


def _decode_text(value: Raw | None) -> str | None:
    """Return a string; None for any other JSON."""
    return (
        None if value is None or bytes(value)[:1] != b'"' else msgspec.json.decode(value, type=str)
    )


def read_usage(body: bytes) -> Usage:
    """Return the usage that an answer reports; none if it has none."""
    try:
        usage = _decode_answer(body).usage
    except msgspec.DecodeError:
        usage = None
    if usage is None:
        return Usage()
    none = _TokenDetails()
    prompt = usage.prompt_tokens_details or usage.input_tokens_details or none
    completion = usage.completion_tokens_details or usage.output_tokens_details or none
    return Usage(
        prompt=usage.prompt_tokens or usage.input_tokens,
        completion=usage.completion_tokens or usage.output_tokens,
        cached=prompt.cached_tokens,
        reasoning=completion.reasoning_tokens,
    )


def encode_answer(custom_id: str, answer: LineAnswer) -> bytes:
    """Encode the response to a request, as a line of the output file or of the error file."""
    body = answer.body
    if b"\n" in body or b"\r" in body:
        body = encode(msgspec.json.decode(body))
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": Raw(body)}
    return _encode_line(custom_id, response, None)


def encode_unanswered(custom_id: str, code: str, message: str) -> bytes:
    """Encode that a request was not executed, as a line of the error file."""
    return _encode_line(custom_id, None, {"code": code, "message": message})


def _encode_line(custom_id: str, response: Json | dict[str, object], error: Json) -> bytes:
    line = {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return make_line(encode(line))
