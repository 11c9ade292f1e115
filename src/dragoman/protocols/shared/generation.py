"""Fields of every request that generates, in the OpenAI APIs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.shared.openai import ModelName, Name, StopText, StreamOptions
from dragoman.protocols.shared.report import Trace, decode_report
from dragoman.protocols.shared.samplers import SamplerFields, decode_samplers
from dragoman.types import Adapter, Request

LENGTH_FIELDS = ("max_completion_tokens", "max_output_tokens")  # other names of `max_tokens`


class AdapterChoice(Struct, forbid_unknown_fields=True):
    """A LoRA adapter and its strength."""

    name: Name
    scale: Annotated[float, Meta(ge=-16, le=16)] = 1.0


class GenerationFields(SamplerFields, kw_only=True):
    """The model, sampling, and how the answer is delivered."""

    model: ModelName | None = None  # may be left out where one model is served
    stop: StopText | Annotated[list[StopText], Meta(max_length=64)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    lora: Name | Annotated[list[AdapterChoice], Meta(max_length=32)] | None = None
    cache_prompt: bool | None = None
    timings: bool | None = None
    timings_per_token: bool | None = None
    trace: Trace = None


def make_request(
    fields: GenerationFields,
    strict: bool,
    max_tokens: int | None,
    warnings: tuple[str, ...] = (),
    **others: Any,
) -> Request:
    """Build a request from the fields that all APIs share, and `others` of the API's own."""
    options = decode_stream_options(fields)
    decoded = decode_samplers(fields, max_tokens)
    names = dict(decoded.client_field_names)
    for name in LENGTH_FIELDS:
        if getattr(fields, name, None) is not None:
            names["max_tokens"] = name
    return Request(
        model=fields.model or "",
        sampling=decoded.sampling,
        client_field_names=names,
        text_biases=decoded.text_biases,
        banned_strings=decoded.banned_strings,
        n=fields.n or 1,
        stop=decode_stops(fields.stop, strict),
        lora=decode_adapters(fields.lora),
        cache_prompt=fields.cache_prompt,
        stream=bool(fields.stream),
        include_usage=options.include_usage,
        obfuscate=options.include_obfuscation,
        report=decode_report(fields.timings, fields.trace, fields.timings_per_token),
        warnings=(*decoded.warnings, *warnings),
        **others,
    )


def decode_stops(stop: str | list[str] | None, strict: bool) -> tuple[str, ...]:
    """Return the stop strings. Empty ones are dropped, or rejected if the server is strict."""
    if stop is None:
        return ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if strict and (len(stops) > 4 or "" in stops):
        raise BadRequest("`stop` takes up to 4 strings that are not empty.", param="stop")
    return tuple(text for text in stops if text)


def decode_adapters(lora: str | list[AdapterChoice] | None) -> tuple[Adapter, ...] | None:
    if lora is None:
        return None
    if isinstance(lora, str):
        return (Adapter(lora),)
    return tuple(Adapter(choice.name, choice.scale) for choice in lora)


def decode_stream_options(fields: GenerationFields) -> StreamOptions:
    if fields.stream_options is not None and not fields.stream:
        raise BadRequest(
            "`stream_options` is only allowed when `stream` is true.", param="stream_options"
        )
    return fields.stream_options or StreamOptions()
