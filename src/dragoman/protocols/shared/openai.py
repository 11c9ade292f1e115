"""What the OpenAI APIs have in common: types of fields, usage, logprobs, errors, pages and chunks.

The annotations of the fields carry their ranges. A chunk of a stream is a prefix and a suffix,
built once per answer, with the escaped text between them; unusual chunks go through the encoder.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from os import urandom
from typing import Annotated, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import DragomanError, Unsupported
from dragoman.events import Delta, Token, Usage
from dragoman.protocols.shared.report import MakeReport, add_report_to_frame
from dragoman.types import Json, Priority, Request

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
DEFAULT_TIER, FLEX_TIER = "default", "flex"  # values of `service_tier`
MODERATION_WARNING = "`moderation` has no effect: this server does not moderate."
PADDING = 32  # bytes; padded frames are a multiple of it

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Unit: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
StopText: TypeAlias = Annotated[str, Meta(max_length=4096)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
ModelName: TypeAlias = Annotated[str, Meta(max_length=512)]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


# Requests


class StreamOptions(Struct):
    """What a stream carries besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


def reject_unsupported(fields: Mapping[str, object], why: str) -> None:
    """Reject the fields that are set, by name: they are known but not supported."""
    for name, value in fields.items():
        if value is not None and value is not False and value != []:
            raise Unsupported(f"`{name}` is not supported: {why}.", param=name)


class TemplateFields(Protocol):
    """Fields of a request that set variables of the model's chat template."""

    chat_template_kwargs: dict[str, Json] | None
    enable_thinking: bool | None


def decode_template_variables(fields: TemplateFields) -> tuple[dict[str, Json], dict[str, str]]:
    """Return the variables, and the client's names for those with a field of their own."""
    variables = dict(fields.chat_template_kwargs or {})
    if fields.enable_thinking is None or "enable_thinking" in variables:
        return variables, {}
    variables["enable_thinking"] = fields.enable_thinking
    return variables, {"template_kwargs.enable_thinking": "enable_thinking"}


def decode_service_tier(tier: str | None) -> tuple[Priority, list[str]]:
    """Return the priority that a service tier means here, and a warning if it means nothing."""
    if tier == FLEX_TIER:
        return "batch", []
    if tier in (None, "auto", DEFAULT_TIER):
        return "live", []
    return "live", [f"`service_tier` has no effect here unless it is `{FLEX_TIER}`."]


def get_service_tier(priority: Priority) -> str:
    """Return the service tier with which a request is processed."""
    return FLEX_TIER if priority == "batch" else DEFAULT_TIER


def warn_about_verbosity(name: str) -> str:
    return f"`{name}` has no effect: ask for it in the prompt."


# Responses


class PromptTokensDetails(Struct):
    cached_tokens: int = 0


class CompletionTokensDetails(Struct):
    reasoning_tokens: int = 0


class CompletionUsage(Struct):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def encode_usage(usage: Usage) -> CompletionUsage:
    return CompletionUsage(
        usage.prompt,
        usage.completion,
        usage.prompt + usage.completion,
        PromptTokensDetails(usage.cached),
        CompletionTokensDetails(usage.reasoning),
    )


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ContentLogprobs(Struct):
    """Logprobs of the content, token by token."""

    content: list[TokenLogprob]
    refusal: None = None


def encode_logprobs(tokens: Sequence[Token]) -> ContentLogprobs:
    return ContentLogprobs([_encode_logprob(token) for token in tokens])


def _encode_logprob(token: Token) -> TokenLogprob:
    top = [TopLogprob(t.text, t.logprob or 0.0, list(t.data)) for t in token.top]
    return TokenLogprob(token.text, token.logprob or 0.0, list(token.data), top)


StopEnd: TypeAlias = str | int | None
StopFields: TypeAlias = tuple[StopEnd, StopEnd, str | msgspec.UnsetType]


def make_stop_fields(request: Request, stop: str | int | None) -> StopFields:
    """Return `stop_reason`, `matched_stop` and `stop_str`.

    vLLM's `stop_reason` is the stop string or stop token of the request that ended the choice.
    SGLang's `matched_stop` is also set if a stop token of the model ended it. Both are null if a
    limit ended it.
    """
    if isinstance(stop, str):
        return stop, stop, stop
    is_requested = stop in (request.sampling.stop_token_ids or ())
    return stop if is_requested else None, stop, msgspec.UNSET


class ErrorBody(Struct):
    """What went wrong, and which field caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Struct):
    error: ErrorBody


def encode_error(error: DragomanError, request_id: str | None = None) -> bytes:
    """Encode an error; OpenAI's APIs send the request id in a header only."""
    body = ErrorBody(error.message, error.type, error.param, error.code)
    return encode(ErrorResponse(body))


def encode_input_tokens(count: int) -> bytes:
    """Encode how many tokens a prompt has."""
    return encode({"object": "response.input_tokens", "input_tokens": count})


def encode_page(items: Sequence[Mapping[str, object]], has_more: bool) -> bytes:
    """Encode a page of objects, each of which has an `id`. Ids of a page are never null."""
    first_id, last_id = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    page = {"object": "list", "data": items, "first_id": first_id, "last_id": last_id}
    return encode(page | {"has_more": has_more})


def pad_frame(frame: bytes) -> bytes:
    """Pad a frame to a multiple of a block, so that its size does not reveal its text."""
    size = PADDING - (len(frame) + 17) % PADDING
    filler = secrets.token_hex(PADDING // 2)[:size].encode()
    return frame[:-3] + b',"obfuscation":"' + filler + b'"}\n\n'


class ChunkEnvelope:
    """The parts that all chunks of one answer share: id, time, model, start and end of a frame."""

    def __init__(
        self, name: str, kind: str, model: str, options: StreamOptions, extra: Mapping[str, str]
    ) -> None:
        self.id = name
        self.created = int(time.time())
        self.model = model
        self.include_usage = options.include_usage
        self._pad = options.include_obfuscation
        head = {"id": self.id, "object": kind, "created": self.created, "model": model, **extra}
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self.include_usage else b"]}\n\n"

    def make_frame(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """Return the two halves of an ordinary chunk, around its text."""
        return self._head + before, after + self._tail

    def encode_text(self, frame: tuple[bytes, bytes], text: str) -> bytes:
        """Encode a chunk with a text between the two halves of its frame."""
        before, after = frame
        chunk = before + encode(text) + after
        return pad_frame(chunk) if self._pad else chunk

    def encode_chunk(self, choice: Struct) -> bytes:
        """Encode a chunk with one choice of any form."""
        chunk = self._head + encode(choice) + self._tail
        return pad_frame(chunk) if self._pad else chunk

    def encode_usage(self, usage: Usage) -> bytes:
        """Encode the chunk with the usage."""
        return self._head + b'],"usage":' + encode(encode_usage(usage)) + b"}\n\n"


class ChunkEncoder:
    """Encodes a stream of chunks; a subclass builds the choices in them.

    The frame around the text of an ordinary chunk is built once for each choice.
    """

    def __init__(
        self,
        request: Request,
        envelope: ChunkEnvelope,
        frames: list[tuple[bytes, bytes]],
        make_report: MakeReport | None,
    ) -> None:
        self.envelope = envelope
        self.request = request
        self._frames = frames
        self._make_report = make_report
        self._unfinished_choices = len(frames)
        self._reports_always = request.report.timings_per_token and make_report is not None
        has_more = request.logprobs is not None or request.returns_token_ids
        is_ordinary = not has_more and not request.obfuscate
        self._is_plain = is_ordinary and not self._reports_always

    def make_text_choice(self, delta: Delta) -> Struct:
        """Build the choice of a chunk that carries text."""
        raise NotImplementedError

    def make_final_choice(self, delta: Delta) -> Struct:
        """Build the choice of a chunk that carries the finish reason."""
        raise NotImplementedError

    def encode_delta(self, delta: Delta) -> list[bytes]:
        is_text = delta.channel == "text"
        if is_text and self._is_plain and delta.finish is None:  # the usual case
            before, after = self._frames[delta.choice]
            return [before + encode(delta.text) + after]
        return self._encode_text_delta(delta) if is_text else self.encode_other_delta(delta)

    def encode_other_delta(self, delta: Delta) -> list[bytes]:
        """Encode a delta of another channel; a subclass without channels encodes its text."""
        return self._encode_text_delta(delta)

    def _encode_text_delta(self, delta: Delta) -> list[bytes]:
        chunks = []
        joins_end = self.request.returns_token_ids and delta.finish is not None
        if (delta.text or delta.tokens or delta.ids) and not joins_end:
            chunks.append(self.envelope.encode_chunk(self.make_text_choice(delta)))
        if delta.finish is not None:
            chunks.append(self.envelope.encode_chunk(self.make_final_choice(delta)))
            self._unfinished_choices -= 1
            if not (self._unfinished_choices or self.envelope.include_usage):
                return self.add_report(chunks)
        return self.add_report(chunks) if self._reports_always else chunks

    def add_report(self, chunks: list[bytes]) -> list[bytes]:
        """Add what the client wants to know about its request to the last of some chunks."""
        if self._make_report is None or not chunks:
            return chunks
        return [*chunks[:-1], add_report_to_frame(chunks[-1], self._make_report())]

    def make_report(self) -> dict[str, Json]:
        """Return the report for a whole answer; empty if the client wants none."""
        return {} if self._make_report is None else self._make_report()

    def end(self, usage: Usage) -> list[bytes]:
        if not self.envelope.include_usage:
            return [DONE]
        return [*self.add_report([self.envelope.encode_usage(usage)]), DONE]

    def fail(self, error: DragomanError) -> list[bytes]:
        return [b"data: " + encode_error(error) + b"\n\n", DONE]


def make_envelope(
    request: Request, prefix: str, kind: str, model: str, extra: Mapping[str, str]
) -> ChunkEnvelope:
    """Make the envelope of an answer; `extra` fields are in all of its chunks."""
    options = StreamOptions(request.include_usage, request.obfuscate)
    name = request.response_id or make_id(prefix)
    return ChunkEnvelope(name, kind, model, options, extra)


def make_id(prefix: str) -> str:
    return f"{prefix}-{urandom(16).hex()}"
