"""Reading a request.

Clients of this dialect are made for one vendor's models and ask every model for what those can do.
So thinking and effort are wishes, and what only that vendor's servers do is left out, with a
warning. What concerns the answer itself (its shape, its length, its calls) is kept to or refused.
Without `thinking` there are no thoughts in an answer, as clients expect that take its first block
for the text.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from dragoman.errors import BadRequest
from dragoman.protocols.messages.content import ContentBlock, ConversationDecoder, MessageParam
from dragoman.protocols.messages.tools import (
    MessagesTool,
    MessagesToolChoice,
    decode_tool_choice,
    decode_tools,
)
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.json_body import decode_body
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Chat, Constraint, Request, Sampling

SINGLE = "tool_choice.disable_parallel_tool_use"
WISHES = ("reasoning_effort", "thinking_budget")


class MessagesThinking(Struct):
    """Whether to think, for how long, and whether to tell."""

    type: str
    budget_tokens: openai.Count | None = None
    display: str | None = None


class MessagesOutputFormat(Struct):
    """What the text of the answer must look like."""

    type: str
    schema: dict[str, Any] | bool | None = None


class MessagesOutputConfig(Struct):
    effort: Annotated[str, Meta(max_length=64)] | None = None
    format: MessagesOutputFormat | None = None


class CountTokensRequest(Struct, kw_only=True):
    """A conversation, and what may be said of how to go on with it."""

    model: Annotated[str, Meta(max_length=512)]
    messages: Annotated[list[MessageParam], Meta(max_length=100_000)]
    max_tokens: openai.Count | None = None
    system: str | list[ContentBlock] | None = None
    tools: Annotated[list[MessagesTool], Meta(max_length=1024)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    output_config: MessagesOutputConfig | None = None
    output_format: MessagesOutputFormat | None = None
    stop_sequences: Annotated[list[openai.StopText], Meta(max_length=64)] | None = None
    temperature: openai.Unit | None = None
    top_p: openai.Unit | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    stream: bool | None = None
    container: Any = None
    mcp_servers: Any = None
    # Accepted and without effect here, as documented for clients that always send them.
    betas: Any = None
    cache_control: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    metadata: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A conversation to go on with."""

    max_tokens: openai.Count  # 0: the prompt is only read, for a later request


class ReasoningSettings(Struct, frozen=True):
    """How to think."""

    effort: str | None
    name: str  # what the client calls it
    budget: int | None = None
    told: bool = False
    sealed: bool = False
    warnings: tuple[str, ...] = ()


def decode_request(body: bytes, strict: bool, signing: ContentSigner) -> Request:
    return _request(decode_body(body, MessagesRequest, strict), signing)


def decode_count_request(body: bytes, strict: bool, signing: ContentSigner) -> Request:
    """A request that only wants its tokens counted."""
    return _request(decode_body(body, CountTokensRequest, strict), signing)


def _request(said: CountTokensRequest, signing: ContentSigner) -> Request:
    thinking = _thinking(said)
    shape = _shape(said)
    chat, warnings = conversation(said, thinking, shape, signing)
    return Request(
        model=openai.check_model(said.model),
        prompts=(chat,),
        sampling=Sampling(
            temperature=said.temperature,
            top_p=said.top_p,
            top_k=0 if said.top_k == -1 else said.top_k,
            max_tokens=said.max_tokens or None,
        ),
        stop=tuple(stop for stop in said.stop_sequences or () if stop),
        constraint=shape,
        include_reasoning=thinking.told,
        encrypt_reasoning=thinking.sealed,
        stream=bool(said.stream),
        prefill_only=said.max_tokens == 0,
        warnings=(*warnings, *thinking.warnings, *_not_here(said)),
    )


def conversation(
    said: CountTokensRequest,
    thinking: ReasoningSettings,
    shape: Constraint | None,
    signing: ContentSigner,
) -> tuple[Chat, tuple[str, ...]]:
    """What the model's template turns into a prompt, and what was left out of it."""
    if not said.messages:
        raise BadRequest("`messages` must not be empty.", param="messages")
    decoder = ConversationDecoder(signing)
    decoder.add_system(said.system)
    for i, turn in enumerate(said.messages):
        decoder.add(turn, f"messages[{i}]")
    goes_on = decoder.continues_last_message()
    offer = decode_tools(said.tools)
    choice, unkept = decode_tool_choice(said.tool_choice, offer)
    single = bool(said.tool_choice and said.tool_choice.disable_parallel_tool_use)
    chat = Chat(
        messages=tuple(decoder.messages),
        tools=offer.tools,
        tool_choice=choice.mode,
        allowed_tools=choice.allowed_tools,
        parallel_tool_calls=not single or goes_on,
        forces_named_tool=choice.forces_named_tool,
        response_format=_shown(shape),
        reasoning_effort=thinking.effort,
        thinking_budget=thinking.budget,
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
        client_field_names={
            "reasoning_effort": thinking.name,
            "thinking_budget": "thinking.budget_tokens",
            "parallel_tool_calls": SINGLE,
            "continue_final_message": f"messages[{len(said.messages) - 1}]",
        },
        optional_fields=WISHES,
    )
    if goes_on:
        _check_going_on(chat, shape)
    if goes_on and single:
        unkept += (f"`{SINGLE}` has no effect on an answer that goes on with a message.",)
    return chat, (*decoder.warnings, *offer.warnings, *unkept)


def _check_going_on(chat: Chat, shape: Constraint | None) -> None:
    """An answer that begins in the middle cannot be held to a whole shape."""
    firm = [shape.param] if shape is not None else []
    if chat.tool_choice == "required":
        firm.append("tool_choice")
    firm += [tool.param for tool in chat.callable_tools if tool.strict]
    if firm:
        last = chat.get_client_field_name("continue_final_message")
        raise BadRequest(
            f"`{firm[0]}` cannot be had together with an answer that goes on with `{last}`: end "
            "with a message of the user's.",
            param=last,
        )


def _thinking(said: CountTokensRequest) -> ReasoningSettings:
    asked = said.thinking
    effort = said.output_config.effort if said.output_config is not None else None
    name = "output_config.effort" if effort is not None else "thinking"
    if asked is None:
        return ReasoningSettings(effort or "none", name if effort else "thinking: disabled")
    if asked.type == "disabled":
        return ReasoningSettings("none", "thinking: disabled")
    warnings: tuple[str, ...] = ()
    if asked.type not in ("enabled", "adaptive", "between_tools"):
        warnings = (f"`thinking.type` is not known here: `{asked.type[:64]}`.",)
    if asked.type == "enabled" and effort is None:
        effort = "medium"
    sealed = asked.display == "omitted"
    return ReasoningSettings(effort, name, asked.budget_tokens, True, sealed, warnings)


def _shape(said: CountTokensRequest) -> Constraint | None:
    wanted, at = said.output_format, "output_format"
    if said.output_config is not None and said.output_config.format is not None:
        wanted, at = said.output_config.format, "output_config.format"
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise BadRequest(f"`{at}.type` must be `json_schema`.", param=f"{at}.type")
    if wanted.schema is None:
        raise BadRequest(
            f"`{at}.schema` is required.",
            param=f"{at}.schema",
            code="missing_required_parameter",
        )
    return response_format.make_json_constraint(wanted.schema, None, f"{at}.schema")


def _shown(shape: Constraint | None) -> dict[str, Any] | None:
    """The same as templates know it."""
    if shape is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": shape.value}}


def _not_here(said: CountTokensRequest) -> list[str]:
    fields = {"container": said.container, "mcp_servers": said.mcp_servers}
    return [f"`{name}` has no effect here." for name, value in fields.items() if value]
