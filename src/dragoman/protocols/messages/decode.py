"""Decode a Messages request.

Clients of this API are made for one vendor's models and ask every model for what those can do. So
thinking and effort are optional fields, and fields that only the vendor's servers implement are
ignored, with a warning. Fields that concern the answer itself (its format, its length, its tool
calls) are honoured or rejected. Without `thinking` there is no reasoning in an answer, because many
clients expect the first block to be the text.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.protocols.messages.content import ContentBlock, ConversationDecoder, MessageParam
from dragoman.protocols.messages.tools import (
    MessagesTool,
    MessagesToolChoice,
    decode_tool_choice,
    decode_tools,
)
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.json_body import decode_body, make_missing_field_error
from dragoman.protocols.shared.report import Trace, decode_report
from dragoman.protocols.shared.signer import ContentSigner
from dragoman.types import Chat, Constraint, Json, Request, Sampling

DISABLE_PARALLEL = "tool_choice.disable_parallel_tool_use"
OPTIONAL_FIELDS = ("thinking_budget",)


class MessagesThinking(Struct):
    """Whether to reason, for how many tokens, and whether to show it."""

    type: str
    budget_tokens: openai.Count | None = None
    display: str | None = None


class MessagesOutputFormat(Struct):
    """The JSON schema that the text of the answer must satisfy."""

    type: str
    schema: response_format.Schema | None = None


class MessagesOutputConfig(Struct):
    effort: Annotated[str, Meta(max_length=64)] | None = None
    format: MessagesOutputFormat | None = None


class CountTokensRequest(Struct, kw_only=True):
    """A conversation whose prompt tokens are counted."""

    model: openai.ModelName | None = None
    messages: Annotated[list[MessageParam], Meta(max_length=20_000)]
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
    container: Json = None
    mcp_servers: Json = None
    # Accepted and without effect here, as documented for clients that always send them.
    betas: Json = None
    cache_control: Json = None
    context_management: Json = None
    diagnostics: Json = None
    inference_geo: Json = None
    metadata: Json = None
    service_tier: Json = None
    speed: Json = None
    user_profile_id: Json = None
    workspace_id: Json = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A conversation to continue."""

    max_tokens: openai.Count  # 0: only process the prompt, for a later request
    timings: bool | None = None
    trace: Trace = None


class ReasoningSettings(Struct, frozen=True):
    """How the model reasons, and whether the client sees it."""

    effort: str | None
    client_name: str  # the field that the client sets it with
    budget: int | None = None
    is_included: bool = False
    is_packed: bool = False
    warnings: tuple[str, ...] = ()


def decode_request(body: bytes, strict: bool, signer: ContentSigner) -> Request:
    fields = decode_body(body, MessagesRequest, strict)
    request = _make_request(fields, signer)
    return replace(request, report=decode_report(fields.timings, fields.trace))


def decode_count_request(body: bytes, strict: bool, signer: ContentSigner) -> Request:
    """Decode a request whose prompt tokens are only counted."""
    return _make_request(decode_body(body, CountTokensRequest, strict), signer)


def _make_request(fields: CountTokensRequest, signer: ContentSigner) -> Request:
    reasoning = _decode_reasoning(fields)
    constraint = _decode_constraint(fields)
    chat, warnings = _decode_chat(fields, reasoning, constraint, signer)
    return Request(
        model=fields.model or "",
        prompts=(chat,),
        sampling=Sampling(
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=0 if fields.top_k == -1 else fields.top_k,
            max_tokens=fields.max_tokens or None,
        ),
        stop=tuple(stop for stop in fields.stop_sequences or () if stop),
        client_field_names={"stop": "stop_sequences"},
        constraint=constraint,
        include_reasoning=reasoning.is_included,
        pack_reasoning=reasoning.is_packed,
        stream=bool(fields.stream),
        prefill_only=fields.max_tokens == 0,
        warnings=(*warnings, *reasoning.warnings, *_warn_about_ignored(fields)),
    )


def _decode_chat(
    fields: CountTokensRequest,
    reasoning: ReasoningSettings,
    constraint: Constraint | None,
    signer: ContentSigner,
) -> tuple[Chat, tuple[str, ...]]:
    """Decode the part of a request that the model's template renders, with warnings."""
    if not fields.messages:
        raise BadRequest("`messages` must not be empty.", param="messages")
    decoder = ConversationDecoder(signer)
    decoder.add_system(fields.system)
    for i, message in enumerate(fields.messages):
        decoder.add(message, f"messages[{i}]")
    continues = decoder.continues_last_message()
    tools = decode_tools(fields.tools)
    choice, choice_warnings = decode_tool_choice(fields.tool_choice, tools)
    single_call = bool(fields.tool_choice and fields.tool_choice.disable_parallel_tool_use)
    chat = Chat(
        messages=tuple(decoder.messages),
        tools=tools.tools,
        tool_choice=choice.mode,
        allowed_tools=choice.allowed_tools,
        parallel_tool_calls=not single_call or continues,
        forces_named_tool=choice.forces_named_tool,
        result_params=decoder.result_params,
        results_follow_calls=True,
        response_format=response_format.make_template_format(constraint),
        reasoning_effort=reasoning.effort,
        thinking_budget=reasoning.budget,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        client_field_names={
            "reasoning_effort": reasoning.client_name,
            "thinking_budget": "thinking.budget_tokens",
            "parallel_tool_calls": DISABLE_PARALLEL,
            "continue_final_message": f"messages[{len(fields.messages) - 1}]",
        },
        optional_fields=OPTIONAL_FIELDS,
    )
    if continues:
        _check_continuation(chat, constraint)
    if continues and single_call:
        choice_warnings += (
            f"`{DISABLE_PARALLEL}` has no effect on an answer that continues a message.",
        )
    return chat, (*decoder.warnings, *tools.warnings, *choice_warnings)


def _check_continuation(chat: Chat, constraint: Constraint | None) -> None:
    """Reject constraints on an answer that continues a message: they apply to whole answers."""
    constraints = [constraint.param] if constraint is not None else []
    if chat.tool_choice == "required":
        constraints.append("tool_choice")
    constraints += [tool.param for tool in chat.callable_tools if tool.strict]
    if constraints:
        last = chat.get_client_field_name("continue_final_message")
        raise BadRequest(
            f"`{constraints[0]}` cannot be combined with an answer that continues `{last}`: end "
            "with a user message.",
            param=last,
        )


def _decode_reasoning(fields: CountTokensRequest) -> ReasoningSettings:
    thinking = fields.thinking
    effort = fields.output_config.effort if fields.output_config is not None else None
    name = "output_config.effort" if effort is not None else "thinking"
    if thinking is None:
        return ReasoningSettings(effort or "none", name if effort else "thinking: disabled")
    if thinking.type == "disabled":
        return ReasoningSettings("none", "thinking: disabled")
    warnings: tuple[str, ...] = ()
    if thinking.type not in ("enabled", "adaptive", "between_tools"):
        warnings = (f"`thinking.type` is unknown: `{thinking.type[:64]}`.",)
    if thinking.type == "enabled" and effort is None:
        effort = "medium"
    packed = thinking.display == "omitted"
    return ReasoningSettings(effort, name, thinking.budget_tokens, True, packed, warnings)


def _decode_constraint(fields: CountTokensRequest) -> Constraint | None:
    output_format, path = fields.output_format, "output_format"
    if fields.output_config is not None and fields.output_config.format is not None:
        output_format, path = fields.output_config.format, "output_config.format"
    if output_format is None:
        return None
    if output_format.type != "json_schema":
        raise BadRequest(f"`{path}.type` must be `json_schema`.", param=f"{path}.type")
    if output_format.schema is None:
        raise make_missing_field_error(f"{path}.schema")
    return response_format.make_json_constraint(output_format.schema, None, f"{path}.schema")


def _warn_about_ignored(fields: CountTokensRequest) -> list[str]:
    ignored = {"container": fields.container, "mcp_servers": fields.mcp_servers}
    return [f"`{name}` has no effect here." for name, value in ignored.items() if value]
