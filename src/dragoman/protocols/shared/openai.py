"""What chat and text completions share: sampling fields, logprobs, usage, errors, frames.

Ranges are on the annotations. A frame of a stream is a prefix and a suffix that are made once per
answer, with the escaped text between them; everything unusual goes through the encoder.
"""

from __future__ import annotations

import secrets
import time
import uuid
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import BadRequest, DragomanError, Unsupported
from dragoman.events import Delta, Token
from dragoman.events import Usage as Spent
from dragoman.types import Adapter, Request, Sampling

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"

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


def decode_sampling(body: SamplingFields, max_tokens: int | None) -> Sampling:
    """The sampling fields that were said, and only those."""
    top_k = 0 if body.top_k == -1 else body.top_k
    repetition, other = body.repetition_penalty, body.repeat_penalty
    if repetition is not None and other is not None and repetition != other:
        raise BadRequest(
            "`repeat_penalty` and `repetition_penalty` are one thing: give one of them.",
            param="repeat_penalty",
        )
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=top_k,
        min_p=body.min_p,
        typical_p=body.typical_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=other if repetition is None else repetition,
        repeat_last_n=body.repeat_last_n,
        seed=body.seed,
        logit_bias=_bias(body.logit_bias),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop_token_ids=None if body.stop_token_ids is None else tuple(body.stop_token_ids),
    )


def _bias(said: dict[str, float] | None) -> dict[int, float] | None:
    if said is None:
        return None
    for key in said:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise BadRequest(
                "Keys of `logit_bias` must be token ids.", param="logit_bias", code="invalid_value"
            )
    return {int(key): value for key, value in said.items()}


def decode_stops(said: str | list[str] | None, strict: bool) -> tuple[str, ...]:
    """Stop strings; empty ones mean nothing and are left out, unless the server is strict."""
    every = (said,) if isinstance(said, str) else tuple(said or ())
    if strict and (len(every) > 4 or "" in every):
        raise BadRequest("`stop` takes up to 4 strings that are not empty.", param="stop")
    return tuple(stop for stop in every if stop)


def decode_adapters(said: str | list[AdapterChoice] | None) -> tuple[Adapter, ...] | None:
    if said is None:
        return None
    if isinstance(said, str):
        return (Adapter(said),)
    return tuple(Adapter(choice.name, choice.scale) for choice in said)


def make_request(
    said: SamplingFields, strict: bool, max_tokens: int | None, **more: Any
) -> Request:
    """A request of what every generating dialect says alike, and `more` of its own."""
    options = decode_stream_options(said)
    return Request(
        model=check_model(said.model),
        sampling=decode_sampling(said, max_tokens),
        n=said.n or 1,
        stop=decode_stops(said.stop, strict),
        lora=decode_adapters(said.lora),
        cache_prompt=said.cache_prompt,
        stream=bool(said.stream),
        include_usage=options.include_usage,
        obfuscate=options.include_obfuscation,
        **more,
    )


def check_model(name: str) -> str:
    if not name.strip():
        raise BadRequest("`model` is required.", param="model", code="missing_required_parameter")
    return name


def decode_stream_options(body: SamplingFields) -> StreamOptions:
    if body.stream_options is not None and not body.stream:
        raise BadRequest(
            "`stream_options` is only allowed when `stream` is true.", param="stream_options"
        )
    return body.stream_options or StreamOptions()


def reject_unsupported(fields: dict[str, Any], why: str) -> None:
    """Refuse by name what is known but cannot be honoured."""
    for name, value in fields.items():
        if value is not None and value is not False and value != []:
            raise Unsupported(f"`{name}` is not supported: {why}.", param=name)


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


def encode_usage(spent: Spent) -> CompletionUsage:
    return CompletionUsage(
        spent.prompt,
        spent.completion,
        spent.prompt + spent.completion,
        PromptTokensDetails(spent.cached),
        CompletionTokensDetails(spent.reasoning),
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


def encode_logprobs(tokens: tuple[Token, ...] | list[Token]) -> ContentLogprobs:
    return ContentLogprobs([_logprob(token) for token in tokens])


def _logprob(token: Token) -> TokenLogprob:
    top = [TopLogprob(t.text, t.logprob or 0.0, list(t.data)) for t in token.top]
    return TokenLogprob(token.text, token.logprob or 0.0, list(token.data), top)


class ErrorBody(Struct):
    """What went wrong, in words, and which field is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Struct):
    error: ErrorBody


def encode_error(failure: DragomanError, request_id: str | None = None) -> bytes:
    """The error object; this dialect has the request's id in a header only."""
    body = ErrorBody(failure.message, failure.type, failure.param, failure.code)
    return encode(ErrorResponse(body))


class ChunkEnvelope:
    """What all chunks of one answer have in common: id, time, model, and the ends of a frame."""

    def __init__(self, name: str, kind: str, model: str, options: StreamOptions) -> None:
        self.id = name
        self.created = int(time.time())
        self.model = model
        self.kind = kind
        self._usage = options.include_usage
        self._pad = options.include_obfuscation
        head = {"id": self.id, "object": kind, "created": self.created, "model": model}
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._usage else b"]}\n\n"

    def make_frame(self, before: bytes, after: bytes) -> tuple[bytes, bytes]:
        """The two halves around the text of an ordinary chunk."""
        return self._head + before, after + self._tail

    def encode_text(self, ends: tuple[bytes, bytes], text: str) -> bytes:
        """A chunk of a text between two halves."""
        before, after = ends
        frame = before + encode(text) + after
        return self._padded(frame) if self._pad else frame

    def encode_chunk(self, choice: Any) -> bytes:
        """A chunk with one choice, of any shape."""
        frame = self._head + encode(choice) + self._tail
        return self._padded(frame) if self._pad else frame

    @staticmethod
    def _padded(frame: bytes) -> bytes:
        """A frame of a coarse length, for a client that wants its sizes to tell nothing."""
        room = 32 - (len(frame) + 17) % 32
        filling = secrets.token_hex(16)[:room].encode()
        return frame[:-3] + b',"obfuscation":"' + filling + b'"}\n\n'

    def encode_end(self, spent: Spent) -> list[bytes]:
        """The chunk with the usage, if it was asked for, and the end of the stream."""
        if not self._usage:
            return [DONE]
        frame = self._head + b'],"usage":' + encode(encode_usage(spent)) + b"}\n\n"
        return [frame, DONE]


class ChunkEncoder:
    """Writes a stream of chunks; a dialect says how a choice looks that gained, and one that ends.

    The frame around the text of an ordinary chunk is made once for each choice.
    """

    def __init__(self, request: Request, envelope: ChunkEnvelope, ends: list[tuple[bytes, bytes]]):
        self.envelope = envelope
        self._ends = ends
        self._plain = request.logprobs is None and not request.obfuscate

    def make_text_choice(self, delta: Delta) -> Struct:
        """The choice of a chunk with what the delta gained."""
        raise NotImplementedError

    def make_final_choice(self, delta: Delta) -> Struct:
        """The choice of a chunk that ends it."""
        raise NotImplementedError

    def encode_delta(self, delta: Delta) -> list[bytes]:
        if self._plain and delta.finish is None:  # the usual case
            before, after = self._ends[delta.choice]
            return [before + encode(delta.text) + after]
        frames = []
        if delta.text or delta.tokens:
            frames.append(self.envelope.encode_chunk(self.make_text_choice(delta)))
        if delta.finish is not None:
            frames.append(self.envelope.encode_chunk(self.make_final_choice(delta)))
        return frames

    def end(self, spent: Spent) -> list[bytes]:
        return self.envelope.encode_end(spent)

    def fail(self, failure: DragomanError) -> list[bytes]:
        return [b"data: " + encode_error(failure) + b"\n\n", DONE]


def make_envelope(request: Request, prefix: str, kind: str, model: str) -> ChunkEnvelope:
    options = StreamOptions(request.include_usage, request.obfuscate)
    return ChunkEnvelope(request.response_id or new_id(prefix), kind, model, options)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"
