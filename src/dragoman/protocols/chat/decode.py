"""Chat completions: reading a request, with `chat_tools`. `chat_answer` writes the answer."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, get_args

from msgspec import Meta, Struct

from dragoman.errors import BadRequest, Unsupported
from dragoman.protocols.chat import encode
from dragoman.protocols.chat import tools as chat_tools
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.content import ContentPartFields, decode_content
from dragoman.protocols.shared.json_body import decode_body
from dragoman.types import Chat, Message, Request, Role, ToolCall, text_content

encode_error = openai.encode_error
encoder = encode.ChatEncoder
ROLES = get_args(Role)
T = TypeVar("T")


class ChatFunctionCall(Struct):
    name: openai.Name
    arguments: str


class ChatToolCallParam(Struct):
    """A tool call of an earlier turn."""

    function: ChatFunctionCall
    id: str = ""
    type: str = "function"


class ChatMessage(Struct):
    """One turn: content as a string, null, or parts, whatever the role."""

    role: str
    content: str | list[ContentPartFields] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[ChatToolCallParam], Meta(max_length=1024)] | None = None
    tool_call_id: str | None = None
    function_call: ChatFunctionCall | None = None
    audio: Any = None


class ChatReasoningOptions(Struct):
    """How to think: the same as the fields of these names beside it."""

    effort: str | None = None
    max_tokens: openai.Count | None = None
    exclude: bool | None = None
    enabled: bool | None = None


class ChatRequest(response_format.ConstraintFields, kw_only=True):
    """A conversation to go on with."""

    messages: Annotated[list[ChatMessage], Meta(max_length=100_000)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[chat_tools.ChatTool], Meta(max_length=1024)] | None = None
    tool_choice: str | chat_tools.ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    include_reasoning: bool | None = None
    thinking_budget: openai.Count | None = None
    thinking_token_budget: openai.Count | None = None
    reasoning: ChatReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    response_prefix: str | None = None
    chat_template: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    metadata: openai.Metadata | None = None
    store: bool | None = None
    # Accepted and without effect here, as documented for clients that always send them.
    service_tier: str | None = None
    prediction: Any = None
    verbosity: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
    moderation: Any = None


def decode_request(body: bytes, strict: bool = False) -> Request:
    said = decode_body(body, ChatRequest, strict)
    _refuse(said)
    longest = said.max_completion_tokens
    chat = decode_chat(said)
    shape, warnings = response_format.decode_constraint(said, requires_call=chat.tool_choice == "required")
    return openai.make_request(
        said,
        strict,
        said.max_tokens if longest is None else longest,
        prompts=(chat,),
        constraint=shape,
        warnings=(*warnings, *_unkept(said)),
        logprobs=_logprobs(said),
        include_reasoning=_told(said),
        store=bool(said.store),
    )


def _unkept(said: ChatRequest) -> list[str]:
    """What is known and has no effect, though it would change the answer."""
    found = []
    if said.verbosity not in (None, "medium"):
        found.append("`verbosity` has no effect: ask for it in words.")
    if said.moderation:
        found.append("`moderation` has no effect: nothing is moderated here.")
    return found


def decode_chat(said: ChatRequest) -> Chat:
    """The part of a request that the model's template turns into a prompt."""
    (effort, effort_name), (budget, budget_name) = _effort(said), _budget(said)
    tools = chat_tools.decode_tools(said.tools)
    chosen = chat_tools.decode_tool_choice(said.tool_choice, tools)
    return Chat(
        messages=_messages(said),
        tools=tools,
        tool_choice=chosen.mode,
        allowed_tools=chosen.allowed_tools,
        parallel_tool_calls=said.parallel_tool_calls is not False and not chosen.forces_named_tool,
        forces_named_tool=chosen.forces_named_tool,
        response_format=response_format.to_template_format(said.response_format),
        template_kwargs=dict(said.chat_template_kwargs or {}),
        reasoning_effort=effort,
        thinking_budget=budget,
        add_generation_prompt=_opens_turn(said),
        continue_final_message=bool(said.continue_final_message or said.response_prefix),
        client_field_names={"reasoning_effort": effort_name, "thinking_budget": budget_name},
    )


def _refuse(said: ChatRequest) -> None:
    openai.reject_unsupported(
        {"chat_template": said.chat_template}, "a request cannot bring its own template"
    )
    openai.reject_unsupported(
        {"functions": said.functions, "function_call": said.function_call},
        "use `tools` and `tool_choice`",
    )
    openai.reject_unsupported({"audio": said.audio}, "answers are text")
    openai.reject_unsupported(
        {"web_search_options": said.web_search_options}, "there is no web search here"
    )
    if said.modalities and said.modalities != ["text"]:
        raise Unsupported("Answers are text: `modalities` can only be `text`.", param="modalities")


def _logprobs(said: ChatRequest) -> int | None:
    if said.top_logprobs is not None and not said.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    return (said.top_logprobs or 0) if said.logprobs else None


def _effort(said: ChatRequest) -> tuple[str | None, str]:
    options = said.reasoning or ChatReasoningOptions()
    enabled = {None: None, True: "medium", False: "none"}[options.enabled]
    return _first(
        {
            "reasoning_effort": said.reasoning_effort,
            "reasoning.effort": options.effort,
            "reasoning.enabled": enabled,
        }
    )


def _budget(said: ChatRequest) -> tuple[int | None, str]:
    options = said.reasoning or ChatReasoningOptions()
    return _first(
        {
            "thinking_budget": said.thinking_budget,
            "thinking_token_budget": said.thinking_token_budget,
            "reasoning.max_tokens": options.max_tokens,
        }
    )


def _first(fields: dict[str, T | None]) -> tuple[T | None, str]:
    """What is said by the first field that says something, and its name."""
    said = ((value, name) for name, value in fields.items() if value is not None)
    return next(said, (None, next(iter(fields))))


def _told(said: ChatRequest) -> bool:
    """Whether the client wants to see thoughts."""
    if said.include_reasoning is not None:
        return said.include_reasoning
    return not (said.reasoning and said.reasoning.exclude)


def _opens_turn(said: ChatRequest) -> bool:
    going_on = said.continue_final_message or said.response_prefix
    if going_on and said.add_generation_prompt:
        raise BadRequest(
            "`continue_final_message` and `add_generation_prompt` exclude each other.",
            param="add_generation_prompt",
        )
    return not going_on if said.add_generation_prompt is None else said.add_generation_prompt


def _messages(said: ChatRequest) -> tuple[Message, ...]:
    if not said.messages:
        raise BadRequest("`messages` must not be empty.", param="messages")
    messages = tuple(_message(one, f"messages[{i}]") for i, one in enumerate(said.messages))
    if said.response_prefix:
        messages = (
            *messages,
            Message(role="assistant", content=text_content(said.response_prefix)),
        )
    return messages


def _message(said: ChatMessage, at: str) -> Message:
    if said.role not in ROLES:
        known = ", ".join(f"`{role}`" for role in ROLES)
        raise BadRequest(f"`{at}.role` must be one of {known}.", param=f"{at}.role")
    content = decode_content(said.content, f"{at}.content")
    if said.content is None:
        content = text_content(said.refusal)
    if said.content is None and said.refusal is None and said.role != "assistant":
        raise BadRequest(f"`{at}.content` is required.", param=f"{at}.content")
    openai.reject_unsupported({f"{at}.audio": said.audio}, "this model reads text")
    openai.reject_unsupported({f"{at}.function_call": said.function_call}, "use `tool_calls`")
    reasoning = said.reasoning_content if said.reasoning_content is not None else said.reasoning
    return Message(
        role=said.role,  # type: ignore[arg-type]  # checked above
        content=content,
        name=said.name,
        reasoning=reasoning,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in said.tool_calls or ()
        ),
        tool_call_id=said.tool_call_id,
    )
