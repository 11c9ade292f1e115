"""Decode a Responses request.

`decode_request` decodes and validates a body as far as possible by itself. The caller looks up
its references (an earlier response, a conversation, items, remote servers); `to_request` then
builds the `Request` from all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import DecodeError, json
from msgspec.structs import asdict, replace

from dragoman.errors import BadRequest, InvalidValue, MutuallyExclusive, UnknownParameter
from dragoman.protocols.responses.decode import items, mcp, tools
from dragoman.protocols.responses.decode.fields import (
    DecodedRequest,
    InputTokensRequest,
    ResponseReasoningOptions,
    ResponseRequest,
    ResponseTextFormat,
    ResponseTextOptions,
    WebSocketRequest,
    WebSocketStreamId,
)
from dragoman.protocols.responses.decode.messages import (
    HISTORY,
    BuiltConversation,
    MessageBuilder,
)
from dragoman.protocols.responses.types import Item, ToolOrigin
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.generation import decode_stops, make_request
from dragoman.protocols.shared.json_body import check_depth, decode_body, make_missing_field_error
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.protocols.shared.tool_choice import make_duplicate_tool_error
from dragoman.types import Chat, Constraint, Json, Request, Tool

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
# Values of `include`, with those that only other servers support.
INCLUDE_VALUES = frozenset(
    {
        *(LOGPROBS, ENCRYPTED, "file_search_call.results", "web_search_call.results"),
        *("web_search_call.action.sources", "code_interpreter_call.outputs"),
        *("message.input_image.image_url", "computer_call_output.output.image_url"),
    }
)
# Fields that have a meaning where nothing is generated.
PROMPT_FIELDS = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "conversation", "tools"),
        *("tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation", "image"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"),
        *("personality", "client_metadata", "chat_template_kwargs", "enable_thinking"),
    }
)


def decode_request(body: bytes, strict: bool = False) -> DecodedRequest:
    return _decode(decode_body(body, ResponseRequest, strict), strict)


def decode_websocket_request(body: bytes | str, strict: bool = False) -> DecodedRequest:
    """Decode a WebSocket message that requests a response, which is always streamed."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    fields = decode_body(raw, WebSocketRequest, strict)
    if fields.type != "response.create":
        raise InvalidValue("`type` must be `response.create`.", param="type")
    openai.reject_unsupported(
        {"background": fields.background}, "a WebSocket has no background responses"
    )
    if fields.stream is False:
        raise BadRequest("A WebSocket always streams: omit `stream`.", param="stream")
    return _decode(replace(fields, stream=True), strict)


def get_stream_id(body: bytes) -> str | None:
    """Return which stream of a WebSocket a message belongs to, if it has an id."""
    try:
        return json.decode(body, type=WebSocketStreamId).stream_id
    except (DecodeError, RecursionError):
        return None


def decode_compact_request(body: bytes, strict: bool = False) -> DecodedRequest:
    """Decode a request for a summary of a conversation."""
    fields = decode_body(body, ResponseRequest, strict)
    return _decode(_keep_prompt_fields(fields, strict), strict)


def decode_count_request(body: bytes, strict: bool = False) -> DecodedRequest:
    """Decode a request whose tokens are counted; without a model, the caller chooses one."""
    fields = _keep_prompt_fields(decode_body(body, InputTokensRequest, strict), strict)
    return _validate(DecodedRequest(fields, items.normalize_items(fields.input)))


def _keep_prompt_fields(fields: ResponseRequest, strict: bool) -> ResponseRequest:
    """Drop the fields that have no meaning where nothing is generated."""
    present = {name: value for name, value in asdict(fields).items() if value is not None}
    for name in present:
        if strict and name not in PROMPT_FIELDS:
            raise UnknownParameter(f"Unrecognized field `{name}`.", param=name)
    prompt_fields = {name: value for name, value in present.items() if name in PROMPT_FIELDS}
    return type(fields)(**prompt_fields)


def _decode(fields: ResponseRequest, strict: bool) -> DecodedRequest:
    _reject_unsupported(fields)
    _check_combinations(fields)
    if strict:
        _check_include(fields.include or [])
    decode_stops(fields.stop, strict)
    request = DecodedRequest(fields, items.normalize_items(fields.input))
    if not (request.items or fields.previous_response_id or fields.conversation):
        raise make_missing_field_error("input")
    return _validate(request)


def _reject_unsupported(fields: ResponseRequest) -> None:
    openai.reject_unsupported({"prompt": fields.prompt}, "this server has no stored prompts")
    openai.reject_unsupported({"max_tokens": fields.max_tokens}, "use `max_output_tokens`")
    openai.reject_unsupported({"response_format": fields.response_format}, "use `text.format`")
    if fields.n not in (None, 1):
        openai.reject_unsupported({"n": fields.n}, "a response is one answer")


def _check_combinations(fields: ResponseRequest) -> None:
    if fields.previous_response_id is not None and fields.conversation is not None:
        raise MutuallyExclusive(
            "`previous_response_id` and `conversation` cannot be combined: send one of them.",
            param="conversation",
        )
    if fields.background and fields.store is False:
        raise BadRequest(
            "`background` needs `store`: a response that is not stored cannot be retrieved.",
            param="background",
        )


def _check_include(include: list[str]) -> None:
    for i, name in enumerate(include):
        if name not in INCLUDE_VALUES:
            known = ", ".join(f"`{value}`" for value in sorted(INCLUDE_VALUES))
            path = f"include[{i}]"
            raise InvalidValue(f"`{path}` must be one of {known}.", param=path)


def _validate(request: DecodedRequest) -> DecodedRequest:
    """Validate the parts that do not depend on the conversation, by building them once."""
    get_mcp_servers(request)
    check_depth(request.fields.tool_choice, "tool_choice")
    check_depth(_get_format(request.fields).schema, "text.format.schema")
    _make_request(request, _declare_tools(request, ()), (), BuiltConversation())
    return request


def get_references(request: DecodedRequest) -> list[str]:
    """Return the ids of the items that the input only refers to."""
    return items.get_reference_ids(request.items)


def get_mcp_servers(request: DecodedRequest) -> list[mcp.McpTool]:
    """Return the remote servers that the request declares."""
    return mcp.decode_mcp_servers(_list_raw_tools(request.fields))


def _list_raw_tools(fields: ResponseRequest) -> Iterator[tuple[dict[str, Json], str]]:
    """Yield all tools as the client sent them, secrets included, with their paths."""
    for i, tool in enumerate(fields.tools or ()):
        yield tool, f"tools[{i}]"
    for i, item in enumerate(fields.input if isinstance(fields.input, list) else ()):
        if item.get("type") in items.TOOL_ITEM_TYPES:
            for j, tool in enumerate(item["tools"]):
                yield tool, f"input[{i}].tools[{j}]"


def get_tool_origins(
    request: DecodedRequest, history: Sequence[Item] = ()
) -> dict[str, ToolOrigin]:
    """Return the origins of the tools, by the flat names that the model knows."""
    return _declare_tools(request, history).origins


def _declare_tools(request: DecodedRequest, history: Iterable[Item]) -> tools.ResponsesToolSet:
    earlier = [(item, "tools") for item in history]
    current = [(item, f"input[{i}].tools") for i, item in enumerate(request.items)]
    added = (
        (item["tools"], path)
        for item, path in earlier + current
        if item["type"] in items.TOOL_ITEM_TYPES
    )
    return tools.decode_tools(request.fields.tools, added)


def continue_request(request: DecodedRequest, output: Sequence[Item]) -> DecodedRequest:
    """Return the request for the next round of a response with this output so far.

    A call that was required has been made: later rounds may end without one.
    """
    fields, choice = request.fields, request.fields.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        fields = replace(fields, tool_choice={**choice, "mode": "auto"})
    elif choice not in (None, "none"):
        fields = replace(fields, tool_choice="auto")
    return DecodedRequest(fields, [*request.items, *output])


def to_request(
    request: DecodedRequest,
    history: Sequence[Item],
    *,
    owner: str,
    packer: ContentPacker,
    remote: Sequence[Tool] = (),
) -> Request:
    """Build the `Request`; references among the items have been resolved."""
    declared = _declare_tools(request, history)
    builder = MessageBuilder(declared.get_flat_name, packer)
    for item in history:
        builder.add(item, HISTORY)
    for i, item in enumerate(request.items):
        builder.add(item, f"input[{i}]")
    conversation = builder.build(request.fields.instructions)
    if not conversation.messages:
        raise make_missing_field_error("input")
    built = _make_request(request, declared, remote, conversation)
    return replace(
        built, owner=owner, store=request.is_stored, prefill_only=not request.wants_answer
    )


def _make_request(
    request: DecodedRequest,
    declared: tools.ResponsesToolSet,
    remote: Sequence[Tool],
    conversation: BuiltConversation,
) -> Request:
    fields = request.fields
    choice, choice_warnings = tools.decode_tool_choice(fields.tool_choice, declared, remote)
    constraint, constraint_warnings = response_format.resolve_constraint(
        fields, _decode_constraint(fields), "text.format", choice.mode == "required"
    )
    parallel = fields.parallel_tool_calls is not False and not choice.forces_named_tool
    variables, variable_names = openai.decode_template_variables(fields)
    chat = Chat(
        messages=conversation.messages,
        tools=_join_tools(declared, remote),
        tool_choice=choice.mode,
        allowed_tools=choice.allowed_tools,
        parallel_tool_calls=parallel,
        result_params=conversation.result_params,
        forces_named_tool=choice.forces_named_tool,
        response_format=response_format.to_template_format(_to_response_format(fields)),
        template_kwargs=variables,
        reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        thinking_budget=fields.thinking_budget,
        client_field_names={"reasoning_effort": "reasoning.effort"} | variable_names,
    )
    priority, tier_warnings = openai.decode_service_tier(fields.service_tier)
    if fields.background and priority == "live":
        priority = "background"
    return make_request(
        fields,
        False,
        fields.max_output_tokens,
        priority=priority,
        prompts=(chat,),
        constraint=constraint,
        logprobs=(fields.top_logprobs or 0) if LOGPROBS in request.include else None,
        warnings=(
            *declared.warnings,
            *choice_warnings,
            *constraint_warnings,
            *tier_warnings,
            *_warn_about_ignored(request),
            *conversation.warnings,
        ),
    )


def _join_tools(declared: tools.ResponsesToolSet, remote: Sequence[Tool]) -> tuple[Tool, ...]:
    for tool in remote:
        if tool.name in declared.tools:
            raise make_duplicate_tool_error(tool.name, "tools")
    return (*declared.tools.values(), *remote)


def _warn_about_ignored(request: DecodedRequest) -> list[str]:
    """Return warnings about known fields that would change the answer but have no effect."""
    fields, warnings = request.fields, []
    if fields.top_logprobs and LOGPROBS not in request.include:
        warnings.append(f"`top_logprobs` has no effect without `include: {LOGPROBS}`.")
    if fields.context_management:
        warnings.append(
            "`context_management` is not supported and has no effect; "
            "use `truncation` or `/v1/responses/compact`."
        )
    if fields.timings_per_token:
        warnings.append("`timings_per_token`: this API sends `timings` once, at the end.")
    if fields.moderation:
        warnings.append(openai.MODERATION_WARNING)
    reasoning = fields.reasoning or ResponseReasoningOptions()
    text = fields.text or ResponseTextOptions()
    if reasoning.mode not in (None, "standard"):
        warnings.append("`reasoning.mode` has no effect here.")
    if reasoning.context not in (None, "auto"):
        warnings.append("`reasoning.context` has no effect: the model reads all reasoning sent.")
    if text.verbosity not in (None, "medium"):
        warnings.append(openai.warn_about_verbosity("text.verbosity"))
    return warnings


def _decode_constraint(fields: ResponseRequest) -> Constraint | None:
    text_format, path = _get_format(fields), "text.format"
    match text_format.type:
        case "text":
            return None
        case "json_object":
            return response_format.make_json_constraint(None, text_format.strict, path)
        case "json_schema":
            for name in ("name", "schema"):
                if getattr(text_format, name) is None:
                    raise make_missing_field_error(f"{path}.{name}")
            response_format.check_schema_name(text_format.name, f"{path}.name")
            return response_format.make_json_constraint(
                text_format.schema, text_format.strict, f"{path}.schema"
            )
    raise BadRequest(
        f"`{path}.type` must be `text`, `json_object` or `json_schema`.", param=f"{path}.type"
    )


def _get_format(fields: ResponseRequest) -> ResponseTextFormat:
    options = fields.text or ResponseTextOptions()
    return options.format or ResponseTextFormat("text")


def _to_response_format(fields: ResponseRequest) -> response_format.ResponseFormat:
    """Return `text.format` as the `response_format` of chat completions."""
    text_format = _get_format(fields)
    kind, name, schema = text_format.type, text_format.name, text_format.schema
    if kind != "json_schema" or name is None or schema is None:
        return response_format.ResponseFormat(kind)
    named = response_format.JsonSchemaFormat(
        name, schema, text_format.description, text_format.strict
    )
    return response_format.ResponseFormat(kind, named)
