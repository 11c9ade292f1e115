"""Decode requests that chat and complete a prompt.

Without messages or a prompt, a request only loads or unloads its model. `stream` is true unless the
client turns it off. Reasoning is on unless the client turns it off, where the model has a switch
for it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, InvalidJson, InvalidValue, Unsupported
from dragoman.protocols.ollama.keep_alive import KeepAlive, decode_keep_alive
from dragoman.protocols.ollama.messages import (
    Images,
    OllamaMessage,
    OllamaTool,
    decode_content,
    decode_messages,
    name_results,
)
from dragoman.protocols.ollama.options import OllamaOptions, decode_options
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.json_body import StructT, decode_body
from dragoman.protocols.shared.tool_choice import decode_tools
from dragoman.types import (
    Chat,
    Constraint,
    Infill,
    Json,
    Message,
    Prompt,
    Request,
    make_text_content,
)

LEVELS = {"low": "low", "medium": "medium", "high": "high", "max": "high"}


class GenerationRequest(Struct, kw_only=True):
    """The fields of both kinds of requests."""

    model: openai.ModelName | None = None
    stream: bool | None = None  # unless it is false, the answer is streamed
    format: str | dict[str, Json] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncate: bool | None = None
    shift: bool | None = None
    debug_render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")


class OllamaChatRequest(GenerationRequest, kw_only=True):
    """A conversation to continue; none loads the model."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=20_000)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=1024)] | None = None


class OllamaGenerateRequest(GenerationRequest, kw_only=True):
    """A prompt to answer; none loads the model."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[openai.TokenId] | None = None
    raw: bool | None = None
    images: Images | None = None


class ModelLoad(Struct, frozen=True):
    """A request that loads a model, or unloads it if `keep_alive` is 0."""

    model: str
    keep_alive: float | None


OllamaRequest: TypeAlias = Request | ModelLoad


def decode_object(body: bytes, kind: type[StructT], strict: bool) -> StructT:
    """Decode a body; Ollama has words of its own for one that is missing."""
    if not body.strip():
        raise InvalidJson("missing request body")
    return decode_body(body, kind, strict)


def decode_chat(body: bytes, strict: bool = False) -> OllamaRequest:
    fields = decode_object(body, OllamaChatRequest, strict)
    if not fields.messages:
        return _make_load(fields)
    messages = decode_messages(fields.messages)
    last, constraint = messages[-1], _decode_format(fields.format)
    continues = last.role == "assistant" and bool(last.content) and not last.tool_calls
    path = f"messages[{len(messages) - 1}]"
    if continues and constraint is not None:
        raise BadRequest(
            f"`format` cannot be combined with an answer that continues `{path}`: end with a user "
            "message.",
            param=path,
        )
    chat = Chat(
        messages=messages,
        tools=decode_tools(fields.tools),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        **_decode_think(fields.think, {"continue_final_message": path}),
        response_format=response_format.make_template_format(constraint),
        result_params=name_results(fields.messages),
    )
    truncates = fields.truncate is not False
    return _make_request(fields, strict, chat, constraint=constraint, truncates=truncates)


def decode_generate(body: bytes, strict: bool = False) -> OllamaRequest:
    fields = decode_object(body, OllamaGenerateRequest, strict)
    if not fields.prompt and not fields.suffix:
        return _make_load(fields)
    constraint = _decode_format(fields.format)
    if fields.raw or fields.suffix:
        prompt, warnings = _decode_plain_prompt(fields)
        return _make_request(fields, strict, prompt, warnings, constraint=constraint)
    user = Message(role="user", content=decode_content(fields.prompt, fields.images, ""))
    system = Message(role="system", content=make_text_content(fields.system))
    chat = Chat(
        messages=(system, user) if fields.system else (user,),
        context=tuple(fields.context or ()),
        template=fields.template or None,
        **_decode_think(fields.think),
        response_format=response_format.make_template_format(constraint),
    )
    return _make_request(fields, strict, chat, constraint=constraint, returns_context=True)


def _decode_plain_prompt(fields: OllamaGenerateRequest) -> tuple[Prompt, list[str]]:
    """Return a prompt that is not a chat, and warnings about fields without effect."""
    mode = "raw" if fields.raw else "suffix"
    refused = ("system", "context", "images", *(("template",) if fields.raw else ()))
    for name in refused:
        if getattr(fields, name):
            raise Unsupported(f"`{name}` cannot be combined with `{mode}`.", param=name)
    warnings = []
    if fields.think is not None:
        warnings.append(f"`think` has no effect with `{mode}`.")
    if fields.raw and fields.suffix:
        warnings.append("`suffix` has no effect with `raw`.")
    if fields.raw:
        return Prompt(content=fields.prompt or ""), warnings
    infill = Infill(suffix=fields.suffix or "", template=fields.template or None)
    return Prompt(content=fields.prompt or "", parse_special=False, infill=infill), warnings


def _make_load(fields: GenerationRequest) -> ModelLoad:
    return ModelLoad(fields.model or "", decode_keep_alive(fields.keep_alive))


def _make_request(
    fields: GenerationRequest,
    strict: bool,
    prompt: Chat | Prompt,
    warnings: list[str] | None = None,
    **others: Any,
) -> Request:
    if fields.debug_render_only:
        raise Unsupported(
            "`_debug_render_only` is not supported: send the header `x-dragoman-debug: prompt`.",
            param="_debug_render_only",
        )
    options = decode_options(fields.options, strict)
    logprobs = None
    if fields.logprobs:
        logprobs = fields.top_logprobs or 0
    return Request(
        model=fields.model or "",
        prompts=(prompt,),
        sampling=options.sampling,
        client_field_names=options.client_field_names,
        text_biases=options.text_biases,
        banned_strings=options.banned_strings,
        stop=options.stop,
        prefill_only=options.prefill_only,
        logprobs=logprobs,
        include_reasoning=fields.think is not False,
        keep_alive=decode_keep_alive(fields.keep_alive),
        stream=fields.stream is not False,
        warnings=(*(warnings or ()), *options.warnings, *_warn_about_ignored(fields)),
        **others,
    )


def _warn_about_ignored(fields: GenerationRequest) -> list[str]:
    warnings = []
    if fields.top_logprobs and not fields.logprobs:
        warnings.append("`top_logprobs` has no effect without `logprobs`.")
    if fields.shift is not None:
        warnings.append("`shift` has no effect: the operator sets it when the model is loaded.")
    return warnings


def _decode_format(value: str | dict[str, Json] | None) -> Constraint | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        if value != "json":
            raise InvalidValue("`format` must be `json` or a JSON schema.", param="format")
        return response_format.make_json_constraint(None, None, "format")
    constraint = response_format.make_json_constraint(value, None, "format")
    return replace(constraint, closes_objects=True)  # as Ollama does


def _decode_think(think: bool | str | None, names: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the fields of a chat that turn reasoning on or off."""
    fields: dict[str, Any] = {
        "client_field_names": {"reasoning_effort": "think", **(names or {})},
        "prefers_reasoning": think is not False,
        "requires_reasoning": think not in (None, False),
    }
    if think is False:
        fields["reasoning_effort"] = "none"
    elif isinstance(think, str):
        if think not in LEVELS:
            levels = ", ".join(f"`{level}`" for level in LEVELS)
            raise InvalidValue(f"`think` must be true, false or one of {levels}.", param="think")
        fields["reasoning_effort"] = LEVELS[think]
    return fields
