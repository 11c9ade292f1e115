"""What the OpenAI APIs have in common: sampling fields, usage, logprobs, errors, pages and chunks.

The annotations of the fields carry their ranges. A chunk of a stream is a prefix and a suffix,
built once per answer, with the escaped text between them; unusual chunks go through the encoder.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest, DragomanError, InvalidValue, Unsupported
from dragoman.events import Delta, Token, Usage
from dragoman.protocols.shared.json_body import make_missing_field_error
from dragoman.types import Adapter, Json, Request, Sampling

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
MODERATION_WARNING = "`moderation` has no effect: this server does not moderate."
PADDING = 32  # bytes; padded frames are a multiple of it

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Unit: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
StopText: TypeAlias = Annotated[str, Meta(max_length=4096)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


# Requests


class StreamOptions(Struct):
    """What a stream carries besides the answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


class AdapterChoice(Struct, forbid_unknown_fields=True):
    """A LoRA adapter and its strength."""

    name: Name
    scale: Annotated[float, Meta(ge=-16, le=16)] = 1.0


class SamplingFields(Struct, kw_only=True):
    """Fields of every generating request. Absent and null mean the model's default."""

    model: Annotated[str, Meta(max_length=512)]
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Unit | None = None
    typical_p: Unit | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=4096)] | None
    ) = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=64)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    lora: Name | Annotated[list[AdapterChoice], Meta(max_length=32)] | None = None
    cache_prompt: bool | None = None


def decode_sampling(fields: SamplingFields, max_tokens: int | None) -> Sampling:
    """Return the sampling fields of a request; those that are absent stay unset."""
    top_k = 0 if fields.top_k == -1 else fields.top_k
    repetition, alias = fields.repetition_penalty, fields.repeat_penalty
    if repetition is not None and alias is not None and repetition != alias:
        raise BadRequest(
            "`repeat_penalty` and `repetition_penalty` mean the same: send one of them.",
            param="repeat_penalty",
        )
    return Sampling(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=top_k,
        min_p=fields.min_p,
        typical_p=fields.typical_p,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        repetition_penalty=alias if repetition is None else repetition,
        repeat_last_n=fields.repeat_last_n,
        seed=fields.seed,
        logit_bias=_decode_logit_bias(fields.logit_bias),
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        ignore_eos=fields.ignore_eos,
        stop_token_ids=None if fields.stop_token_ids is None else tuple(fields.stop_token_ids),
    )


def _decode_logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise InvalidValue("Keys of `logit_bias` must be token ids.", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def decode_stops(stop: str | list[str] | None, strict: bool) -> tuple[str, ...]:
    """Return the stop strings. Empty ones are dropped, or rejected if the server is strict."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if strict and (len(stops) > 4 or "" in stops):
        raise BadRequest("`stop` takes up to 4 strings that are not empty.", param="stop")
    return tuple(text for text in stops if text)


def decode_adapters(lora: str | list[AdapterChoice] | None) -> tuple[Adapter, ...] | None:
    if lora is None:
        return None
    if isinstance(lora, str):
        return (Adapter(lora),)
    return tuple(Adapter(choice.name, choice.scale) for choice in lora)


def make_request(
    fields: SamplingFields, strict: bool, max_tokens: int | None, **others: Any
) -> Request:
    """Build a request from the fields that all APIs share, and `others` of the API's own."""
    options = decode_stream_options(fields)
    return Request(
        model=check_model(fields.model),
        sampling=decode_sampling(fields, max_tokens),
        n=fields.n or 1,
        stop=decode_stops(fields.stop, strict),
        lora=decode_adapters(fields.lora),
        cache_prompt=fields.cache_prompt,
        stream=bool(fields.stream),
        include_usage=options.include_usage,
        obfuscate=options.include_obfuscation,
        **others,
    )


def check_model(name: str) -> str:
    if not name.strip():
        raise make_missing_field_error("model")
    return name


def decode_stream_options(fields: SamplingFields) -> StreamOptions:
    if fields.stream_options is not None and not fields.stream:
        raise BadRequest(
            "`stream_options` is only allowed when `stream` is true.", param="stream_options"
        )
    return fields.stream_options or StreamOptions()


def reject_unsupported(fields: Mapping[str, object], why: str) -> None:
    """Reject the fields that are set, by name: they are known but not supported."""
    for name, value in fields.items():
        if value is not None and value is not False and value != []:
            raise Unsupported(f"`{name}` is not supported: {why}.", param=name)


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


def encode_page(items: Sequence[Mapping[str, Json]], has_more: bool) -> bytes:
    """Encode a page of objects, each of which has an `id`."""
    first_id, last_id = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    page = {"object": "list", "data": items, "first_id": first_id, "last_id": last_id}
    return encode(page | {"has_more": has_more})


def pad_frame(frame: bytes) -> bytes:
    """Pad a frame to a multiple of a block, so that its size does not reveal its text."""
    size = PADDING - (len(frame) + 17) % PADDING
    filler = secrets.token_hex(PADDING // 2)[:size].encode()
    return frame[:-3] + b',"obfuscation":"' + filler + b'"}\n\n'


class ChunkEnvelope:
    """The parts that all chunks of one answer share: id, time, model, start and end of a frame."""

    def __init__(self, name: str, kind: str, model: str, options: StreamOptions) -> None:
        self.id = name
        self.created = int(time.time())
        self.model = model
        self._include_usage = options.include_usage
        self._pad = options.include_obfuscation
        head = {"id": self.id, "object": kind, "created": self.created, "model": model}
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"

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

    def encode_end(self, usage: Usage) -> list[bytes]:
        """Encode the chunk with the usage, if it was requested, and the end of the stream."""
        if not self._include_usage:
            return [DONE]
        chunk = self._head + b'],"usage":' + encode(encode_usage(usage)) + b"}\n\n"
        return [chunk, DONE]


class ChunkEncoder:
    """Encodes a stream of chunks; a subclass builds the choices in them.

    The frame around the text of an ordinary chunk is built once for each choice.
    """

    def __init__(
        self, request: Request, envelope: ChunkEnvelope, frames: list[tuple[bytes, bytes]]
    ) -> None:
        self.envelope = envelope
        self._frames = frames
        self._is_plain = request.logprobs is None and not request.obfuscate

    def make_text_choice(self, delta: Delta) -> Struct:
        """Build the choice of a chunk that carries text."""
        raise NotImplementedError

    def make_final_choice(self, delta: Delta) -> Struct:
        """Build the choice of a chunk that carries the finish reason."""
        raise NotImplementedError

    def encode_delta(self, delta: Delta) -> list[bytes]:
        if self._is_plain and delta.finish is None:  # the usual case
            before, after = self._frames[delta.choice]
            return [before + encode(delta.text) + after]
        chunks = []
        if delta.text or delta.tokens:
            chunks.append(self.envelope.encode_chunk(self.make_text_choice(delta)))
        if delta.finish is not None:
            chunks.append(self.envelope.encode_chunk(self.make_final_choice(delta)))
        return chunks

    def end(self, usage: Usage) -> list[bytes]:
        return self.envelope.encode_end(usage)

    def fail(self, error: DragomanError) -> list[bytes]:
        return [b"data: " + encode_error(error) + b"\n\n", DONE]


def make_envelope(request: Request, prefix: str, kind: str, model: str) -> ChunkEnvelope:
    options = StreamOptions(request.include_usage, request.obfuscate)
    return ChunkEnvelope(request.response_id or make_id(prefix), kind, model, options)


def make_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"
