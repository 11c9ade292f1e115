"""Decode a chat completion request."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, TypeVar, cast, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.chat.repeated_fields import RepeatedFields
from dragoman.protocols.chat.tools import (
    ChatFunctionCall,
    ChatToolChoice,
    decode_tool_choice,
)
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.content import ContentPartFields, decode_content
from dragoman.protocols.shared.generation import make_request
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.tool_choice import ChatTool, decode_tools
from dragoman.types import Chat, Json, Message, Request, Role, ToolCall, make_text_content

ROLES = get_args(Role)
T = TypeVar("T")


class ChatToolCallParam(Struct):
    """A tool call of an earlier turn."""

    function: ChatFunctionCall
    id: str = ""
    type: str = "function"


class ChatMessage(Struct):
    """One turn: content is a string, null, or parts, whatever the role."""

    role: str
    content: str | list[ContentPartFields] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ChatToolCallParam], Meta(max_length=1024)] | None = None
    tool_call_id: str | None = None
    function_call: ChatFunctionCall | None = None
    audio: Json = None


class ChatReasoningOptions(Struct):
    """Reasoning options; the request also has fields of its own for them."""

    effort: str | None = None
    max_tokens: openai.Count | None = None
    exclude: bool | None = None
    enabled: bool | None = None


class ChatRequest(response_format.ConstraintFields, kw_only=True):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], Meta(max_length=20_000)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[ChatTool], Meta(max_length=1024)] | None = None
    tool_choice: str | ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    include_reasoning: bool | None = None
    thinking_budget: openai.Count | None = None
    thinking_token_budget: openai.Count | None = None
    reasoning: ChatReasoningOptions | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    enable_thinking: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    response_prefix: str | None = None
    functions: Json = None
    function_call: Json = None
    modalities: list[str] | None = None
    audio: Json = None
    web_search_options: Json = None
    metadata: openai.Metadata | None = None
    store: bool | None = None
    service_tier: str | None = None
    # Accepted and without effect here, as documented for clients that always send them.
    prediction: Json = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Json = None
    moderation: Json = None


UNSUPPORTED_FIELDS = ("functions", "function_call", "audio", "web_search_options", "modalities")
get_unsupported = attrgetter(*UNSUPPORTED_FIELDS)
UNSET = (None,) * len(UNSUPPORTED_FIELDS)


# requests by all their fields but the messages
REPEATED: RepeatedFields[list[ChatMessage], tuple[Request, Chat]] = RepeatedFields(
    ChatRequest, "messages"
)


def decode_request(body: bytes, strict: bool = False) -> Request:
    split = REPEATED.split(body, strict)
    repeated = None if split is None else REPEATED.find(split)
    if repeated is not None:
        sent, (request, chat) = repeated
        messages = _decode_messages(sent)
        chat = replace(chat, messages=messages, result_params=_name_results(messages))
        return replace(request, prompts=(chat,))
    fields = decode_body(body, ChatRequest, strict)
    request, chat = _decode_fields(fields, strict)
    if split is not None and not _get_prefix(fields):  # a prefix is one more message
        REPEATED.add(split, (request, chat))
    return request


def _decode_fields(fields: ChatRequest, strict: bool) -> tuple[Request, Chat]:
    """Decode all fields; the conversation is a part of the request."""
    _reject_unsupported(fields)
    max_tokens = fields.max_completion_tokens
    chat = decode_chat(fields)
    constraint, warnings = response_format.decode_constraint(
        fields, requires_call=chat.tool_choice == "required"
    )
    priority, tier_warnings = openai.decode_service_tier(fields.service_tier)
    request = make_request(
        fields,
        strict,
        fields.max_tokens if max_tokens is None else max_tokens,
        prompts=(chat,),
        constraint=constraint,
        priority=priority,
        warnings=(*warnings, *tier_warnings, *_warn_about_ignored(fields)),
        logprobs=_decode_logprobs(fields),
        include_reasoning=_includes_reasoning(fields),
        store=bool(fields.store),
    )
    return request, chat


def _warn_about_ignored(fields: ChatRequest) -> list[str]:
    """Return warnings about known fields that would change the answer but have no effect."""
    warnings = []
    if fields.verbosity not in (None, "medium"):
        warnings.append(openai.warn_about_verbosity("verbosity"))
    if fields.moderation:
        warnings.append(openai.MODERATION_WARNING)
    if fields.response_prefix and not _get_prefix(fields):
        warnings.append("`response_prefix` has no effect: `add_generation_prompt` is false.")
    return warnings


def decode_chat(fields: ChatRequest) -> Chat:
    """Decode the part of a request that the model's template renders."""
    (effort, effort_name), (budget, budget_name) = _get_effort(fields), _get_budget(fields)
    tools = decode_tools(fields.tools)
    choice = decode_tool_choice(fields.tool_choice, tools)
    parallel = fields.parallel_tool_calls is not False and not choice.forces_named_tool
    names = {"reasoning_effort": effort_name, "thinking_budget": budget_name}
    if prefix := _get_prefix(fields):
        names["continue_final_message"] = "response_prefix"
    variables, variable_names = openai.decode_template_variables(fields)
    messages = _decode_messages(fields.messages)
    if prefix:
        messages = (*messages, Message(role="assistant", content=make_text_content(prefix)))
    return Chat(
        messages=messages,
        tools=tools,
        tool_choice=choice.mode,
        allowed_tools=choice.allowed_tools,
        parallel_tool_calls=parallel,
        result_params=_name_results(messages),
        forces_named_tool=choice.forces_named_tool,
        response_format=response_format.to_template_format(fields.response_format),
        template_kwargs=variables,
        reasoning_effort=effort,
        thinking_budget=budget,
        add_generation_prompt=_adds_generation_prompt(fields),
        continue_final_message=bool(fields.continue_final_message or prefix),
        client_field_names=names | variable_names,
    )


def _reject_unsupported(fields: ChatRequest) -> None:
    if get_unsupported(fields) == UNSET:
        return
    openai.reject_unsupported(
        {"functions": fields.functions, "function_call": fields.function_call},
        "use `tools` and `tool_choice`",
    )
    openai.reject_unsupported({"audio": fields.audio}, "answers are text")
    openai.reject_unsupported(
        {"web_search_options": fields.web_search_options}, "this server has no web search"
    )
    if fields.modalities and fields.modalities != ["text"]:
        raise Unsupported("`modalities` can only be `text`.", param="modalities")


def _decode_logprobs(fields: ChatRequest) -> int | None:
    if fields.top_logprobs is not None and not fields.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _get_effort(fields: ChatRequest) -> tuple[str | None, str]:
    options = fields.reasoning
    if options is None:
        return fields.reasoning_effort, "reasoning_effort"
    enabled = {None: None, True: "medium", False: "none"}[options.enabled]
    return _get_first(
        {
            "reasoning_effort": fields.reasoning_effort,
            "reasoning.effort": options.effort,
            "reasoning.enabled": enabled,
        }
    )


def _get_budget(fields: ChatRequest) -> tuple[int | None, str]:
    options = fields.reasoning
    if options is None and fields.thinking_token_budget is None:
        return fields.thinking_budget, "thinking_budget"
    return _get_first(
        {
            "thinking_budget": fields.thinking_budget,
            "thinking_token_budget": fields.thinking_token_budget,
            "reasoning.max_tokens": None if options is None else options.max_tokens,
        }
    )


def _get_first(values: dict[str, T | None]) -> tuple[T | None, str]:
    """Return the first value that is set, and the name of its field."""
    present = ((value, name) for name, value in values.items() if value is not None)
    return next(present, (None, next(iter(values))))


def _includes_reasoning(fields: ChatRequest) -> bool:
    if fields.include_reasoning is not None:
        return fields.include_reasoning
    return not (fields.reasoning and fields.reasoning.exclude)


def _adds_generation_prompt(fields: ChatRequest) -> bool:
    if fields.continue_final_message and fields.response_prefix:
        raise BadRequest(
            "`response_prefix` and `continue_final_message` cannot be combined.",
            param="response_prefix",
        )
    if fields.continue_final_message and fields.add_generation_prompt:
        raise BadRequest(
            "`continue_final_message` and `add_generation_prompt` cannot be combined.",
            param="add_generation_prompt",
        )
    if fields.continue_final_message or _get_prefix(fields):
        return False
    return fields.add_generation_prompt is not False


def _get_prefix(fields: ChatRequest) -> str:
    """Return the text with which the answer must start, which needs a generation prompt."""
    return "" if fields.add_generation_prompt is False else fields.response_prefix or ""


def _decode_messages(sent: list[ChatMessage]) -> tuple[Message, ...]:
    if not sent:
        raise BadRequest("`messages` must not be empty.", param="messages")
    return tuple([_decode_message(message, i) for i, message in enumerate(sent)])


def _name_results(messages: tuple[Message, ...]) -> dict[int, str]:
    """Return the paths of the ids of tool results, by the index of their message."""
    return {
        i: f"messages[{i}].tool_call_id"
        for i, message in enumerate(messages)
        if message.role == "tool"
    }


def _decode_message(message: ChatMessage, index: int) -> Message:
    path = f"messages[{index}]"
    if message.role not in ROLES:
        known = ", ".join(f"`{role}`" for role in ROLES)
        raise BadRequest(f"`{path}.role` must be one of {known}.", param=f"{path}.role")
    content = decode_content(message.content, f"{path}.content")
    if message.content is None:
        content = make_text_content(message.refusal)
    if message.content is None and message.refusal is None and message.role != "assistant":
        raise BadRequest(f"`{path}.content` is required.", param=f"{path}.content")
    if message.audio is not None or message.function_call is not None:
        openai.reject_unsupported({f"{path}.audio": message.audio}, "this model reads text")
        call = {f"{path}.function_call": message.function_call}
        openai.reject_unsupported(call, "use `tool_calls`")
    reasoning = message.reasoning_content
    return Message(
        role=cast(Role, message.role),  # checked above
        content=content,
        name=message.name,
        reasoning=message.reasoning if reasoning is None else reasoning,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls
        )
        if message.tool_calls
        else (),
        tool_call_id=message.tool_call_id,
    )
