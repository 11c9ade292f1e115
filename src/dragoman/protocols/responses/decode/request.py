"""Reading a request for a response.

`decode` says everything that can be said of a body by itself. What it refers to (an earlier
response, a conversation, items, remote servers) is for the caller to find; `to_request` then makes
the question of it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import DecodeError, json
from msgspec.structs import asdict, replace

from dragoman.errors import BadRequest
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
from dragoman.protocols.responses.decode.messages import MessageBuilder
from dragoman.protocols.responses.types import Item, ToolOrigin
from dragoman.protocols.shared import openai, response_format
from dragoman.protocols.shared.json_body import check_depth, decode_body
from dragoman.protocols.shared.signer import ContentPacker
from dragoman.types import Chat, Constraint, Message, Request, Tool

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
# what other servers have more of
INCLUDABLE = frozenset(
    {
        *(LOGPROBS, ENCRYPTED, "file_search_call.results", "web_search_call.results"),
        *("web_search_call.action.sources", "code_interpreter_call.outputs"),
        *("message.input_image.image_url", "computer_call_output.output.image_url"),
    }
)
# fields that mean something where nothing is answered
READING = frozenset(
    {
        *("model", "input", "instructions", "previous_response_id", "conversation", "tools"),
        *("tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation", "image"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"),
        *("personality", "client_metadata", "chat_template_kwargs"),
    }
)


def decode_request(body: bytes, strict: bool = False) -> DecodedRequest:
    return _asked(decode_body(body, ResponseRequest, strict), strict)


def decode_websocket_request(body: bytes | str, strict: bool = False) -> DecodedRequest:
    """A frame that asks for a response, which is always streamed."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    said = decode_body(raw, WebSocketRequest, strict)
    if said.type != "response.create":
        raise BadRequest("`type` must be `response.create`.", param="type", code="invalid_value")
    openai.reject_unsupported({"background": said.background}, "a socket has no background")
    if said.stream is False:
        raise BadRequest("A socket only streams: leave `stream` out.", param="stream")
    return _asked(replace(said, stream=True), strict)


def get_stream_id(body: bytes) -> str | None:
    """Which stream of a socket a frame is for, if it says so."""
    try:
        return json.decode(body, type=WebSocketStreamId).stream_id
    except (DecodeError, RecursionError):
        return None


def decode_compact_request(body: bytes, strict: bool = False) -> DecodedRequest:
    """A request whose answer would be a summary of what goes in."""
    return _asked(_reading(decode_body(body, ResponseRequest, strict), strict), strict)


def decode_count_request(body: bytes, strict: bool = False) -> DecodedRequest:
    """A request that is only counted; where it names no model, the caller chooses one."""
    said = _reading(decode_body(body, InputTokensRequest, strict), strict)
    return _checked(DecodedRequest(said, items.normalize_items(said.input)))


def _reading(said: ResponseRequest, strict: bool) -> ResponseRequest:
    """Only the fields that mean something where nothing is answered."""
    given = {name: value for name, value in asdict(said).items() if value is not None}
    for name in given:
        if strict and name not in READING:
            raise BadRequest(f"Unrecognized field `{name}`.", param=name, code="unknown_parameter")
    return type(said)(**{name: value for name, value in given.items() if name in READING})


def _asked(said: ResponseRequest, strict: bool) -> DecodedRequest:
    openai.check_model(said.model)
    _refuse(said)
    _check_pairs(said)
    if strict:
        _check_include(said.include or [])
    openai.decode_stops(said.stop, strict)
    asked = DecodedRequest(said, items.normalize_items(said.input))
    if not (asked.items or said.previous_response_id or said.conversation):
        raise BadRequest("`input` is required.", param="input", code="missing_required_parameter")
    return _checked(asked)


def _refuse(said: ResponseRequest) -> None:
    openai.reject_unsupported({"prompt": said.prompt}, "there are no stored prompts here")
    openai.reject_unsupported(
        {"chat_template": said.chat_template}, "a request cannot bring its own template"
    )
    openai.reject_unsupported({"max_tokens": said.max_tokens}, "use `max_output_tokens`")
    openai.reject_unsupported({"response_format": said.response_format}, "use `text.format`")
    if said.n not in (None, 1):
        openai.reject_unsupported({"n": said.n}, "a response is one answer")


def _check_pairs(said: ResponseRequest) -> None:
    if said.previous_response_id is not None and said.conversation is not None:
        raise BadRequest(
            "`previous_response_id` and `conversation` cannot be had together: give one of them.",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    if said.background and said.store is False:
        raise BadRequest(
            "`background` needs `store`: an answer that is not kept cannot be asked for later.",
            param="background",
        )


def _check_include(said: list[str]) -> None:
    for i, name in enumerate(said):
        if name not in INCLUDABLE:
            known = ", ".join(f"`{one}`" for one in sorted(INCLUDABLE))
            at = f"include[{i}]"
            raise BadRequest(f"`{at}` must be one of {known}.", param=at, code="invalid_value")


def _checked(asked: DecodedRequest) -> DecodedRequest:
    """All that needs no conversation is made once, to find out whether it can be."""
    get_mcp_servers(asked)
    check_depth(asked.fields.tool_choice, "tool_choice")
    check_depth(_format(asked.fields).schema, "text.format.schema")
    model = asked.fields.model or "?"  # of a request that leaves it to the caller
    whole = replace(asked, fields=replace(asked.fields, model=model))
    _request(whole, _offered(asked, ()), (), (), [])
    return asked


def get_references(asked: DecodedRequest) -> list[str]:
    """The ids of items that the input only refers to."""
    return items.get_reference_ids(asked.items)


def get_mcp_servers(asked: DecodedRequest) -> list[mcp.McpTool]:
    """The remote servers that the request names."""
    return mcp.decode_mcp_servers(_raw_tools(asked.fields))


def _raw_tools(said: ResponseRequest) -> Iterator[tuple[dict[str, Any], str]]:
    """All tools as the client wrote them, secrets included."""
    for i, tool in enumerate(said.tools or ()):
        yield tool, f"tools[{i}]"
    for i, item in enumerate(said.input if isinstance(said.input, list) else ()):
        if item.get("type") in items.TOOLS:
            for j, tool in enumerate(item["tools"]):
                yield tool, f"input[{i}].tools[{j}]"


def get_tool_origins(asked: DecodedRequest, history: Sequence[Item] = ()) -> dict[str, ToolOrigin]:
    """What the client calls the tools that the model knows by flat names."""
    return _offered(asked, history).origins


def _offered(asked: DecodedRequest, history: Iterable[Item]) -> tools.DeclaredTools:
    earlier = [(item, "tools") for item in history]
    now = [(item, f"input[{i}].tools") for i, item in enumerate(asked.items)]
    adding = ((item["tools"], at) for item, at in earlier + now if item["type"] in items.TOOLS)
    return tools.decode_tools(asked.fields.tools, adding)


def continue_request(asked: DecodedRequest, output: Sequence[Item]) -> DecodedRequest:
    """The same for the next round of a response that has said `output` so far.

    A call that was demanded has been made: the rounds after it are free to end.
    """
    said, choice = asked.fields, asked.fields.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        said = replace(said, tool_choice={**choice, "mode": "auto"})
    elif choice not in (None, "none"):
        said = replace(said, tool_choice="auto")
    return DecodedRequest(said, [*asked.items, *output])


def to_request(
    asked: DecodedRequest,
    history: Sequence[Item],
    *,
    owner: str,
    sealing: ContentPacker,
    remote: Sequence[Tool] = (),
) -> Request:
    """The question, after what was said before; references in the items have been resolved."""
    offered = _offered(asked, history)
    telling = MessageBuilder(offered.get_flat_name, sealing)
    for item in history:
        telling.add(item, "previous_response_id")
    for i, item in enumerate(asked.items):
        telling.add(item, f"input[{i}]")
    messages = telling.messages(asked.fields.instructions)
    if not messages:
        raise BadRequest("`input` is required.", param="input", code="missing_required_parameter")
    request = _request(asked, offered, remote, messages, telling.warnings)
    return replace(request, owner=owner, store=asked.is_stored, prefill_only=not asked.wants_answer)


def _request(
    asked: DecodedRequest,
    offered: tools.DeclaredTools,
    remote: Sequence[Tool],
    messages: tuple[Message, ...],
    warnings: list[str],
) -> Request:
    said = asked.fields
    chosen, unkept = tools.decode_tool_choice(said.tool_choice, offered, remote)
    shape, replaced = response_format.resolve_constraint(
        said, _shape(said), "text.format", chosen.mode == "required"
    )
    chat = Chat(
        messages=messages,
        tools=_together(offered, remote),
        tool_choice=chosen.mode,
        allowed_tools=chosen.allowed_tools,
        parallel_tool_calls=said.parallel_tool_calls is not False and not chosen.forces_named_tool,
        forces_named_tool=chosen.forces_named_tool,
        response_format=response_format.to_template_format(_response_format(said)),
        template_kwargs=dict(said.chat_template_kwargs or {}),
        reasoning_effort=None if said.reasoning is None else said.reasoning.effort,
        thinking_budget=said.thinking_budget,
        client_field_names={"reasoning_effort": "reasoning.effort"},
        optional_fields=("reasoning_effort",),
    )
    return openai.make_request(
        said,
        False,
        said.max_output_tokens,
        prompts=(chat,),
        constraint=shape,
        logprobs=(said.top_logprobs or 0) if LOGPROBS in asked.include else None,
        warnings=(*offered.warnings, *unkept, *replaced, *_unkept(asked), *warnings),
    )


def _together(offered: tools.DeclaredTools, remote: Sequence[Tool]) -> tuple[Tool, ...]:
    for tool in remote:
        if tool.name in offered.tools:
            raise BadRequest(f"Two tools are called `{tool.name}`.", param="tools")
    return (*offered.tools.values(), *remote)


def _unkept(asked: DecodedRequest) -> list[str]:
    """What is known and has no effect, though it would change the answer."""
    said, found = asked.fields, []
    if said.top_logprobs and LOGPROBS not in asked.include:
        found.append(f"`top_logprobs` has no effect without `include: {LOGPROBS}`.")
    if said.context_management:
        found.append("`context_management` has no effect: nothing is made shorter by itself here.")
    if said.moderation:
        found.append("`moderation` has no effect: nothing is moderated here.")
    thinking, wording = (
        said.reasoning or ResponseReasoningOptions(),
        said.text or ResponseTextOptions(),
    )
    if thinking.mode not in (None, "standard"):
        found.append("`reasoning.mode` has no effect here.")
    if thinking.context not in (None, "auto"):
        found.append("`reasoning.context` has no effect: all thoughts that are sent are read.")
    if wording.verbosity not in (None, "medium"):
        found.append("`text.verbosity` has no effect: ask for it in words.")
    return found


def _shape(said: ResponseRequest) -> Constraint | None:
    """What `text.format` asks for."""
    form = _format(said)
    match form.type:
        case "text":
            return None
        case "json_object":
            return response_format.make_json_constraint(None, form.strict, "text.format")
        case "json_schema":
            at = "text.format"
            for name in ("name", "schema"):
                if getattr(form, name) is None:
                    raise BadRequest(
                        f"`{at}.{name}` is required.",
                        param=f"{at}.{name}",
                        code="missing_required_parameter",
                    )
            response_format.check_schema_name(form.name, f"{at}.name")
            return response_format.make_json_constraint(form.schema, form.strict, f"{at}.schema")
    raise BadRequest(
        "`text.format.type` must be `text`, `json_object` or `json_schema`.",
        param="text.format.type",
    )


def _format(said: ResponseRequest) -> ResponseTextFormat:
    options = said.text or ResponseTextOptions()
    return options.format or ResponseTextFormat("text")


def _response_format(said: ResponseRequest) -> response_format.ResponseFormat | None:
    """The same as chat has it, which templates know."""
    form = _format(said)
    if form.type != "json_schema" or form.name is None or form.schema is None:
        return response_format.ResponseFormat(form.type)
    inner = response_format.JsonSchemaFormat(form.name, form.schema, form.description, form.strict)
    return response_format.ResponseFormat(form.type, inner)
