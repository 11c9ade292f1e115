"""Writes a conversation as the prompt of a job for a chat-only server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from dragoman.errors import Unsupported
from dragoman.models.model import Model
from dragoman.pipeline.plan import PreparedPrompt
from dragoman.pipeline.render import adapt_chat
from dragoman.types import (
    Chat,
    Constraint,
    Json,
    Message,
    Prompt,
    Request,
    TextPart,
    Tool,
)

NOT_ENFORCED = "is passed on, but not enforced: this model is served by another server's chat API."


def prepare_relay(prompt: Chat | Prompt, model: Model, request: Request) -> PreparedPrompt:
    """Write a chat as the prompt of a job, or reject what cannot be passed on."""
    if not isinstance(prompt, Chat):
        raise Unsupported(
            "This model is served by another server's chat API: it takes conversations, not raw "
            "prompts.",
            param="prompt",
        )
    chat = prompt
    if request.banned_strings:
        raise _make_error("banned_strings", request.client_field_names)
    names = chat.client_field_names
    if chat.continue_final_message or not chat.add_generation_prompt:
        field = "continue_final_message" if chat.continue_final_message else "add_generation_prompt"
        raise _make_error(field, names)
    for field in ("context", "template"):
        if getattr(chat, field):
            raise _make_error(field, names)
    if chat.thinking_budget is not None and "thinking_budget" not in chat.optional_fields:
        raise _make_error("thinking_budget", names)
    if chat.context:
        raise _make_error("context", names)
    warnings = [*_check_constraint(request.constraint), *_check_tools(chat)]
    if chat.thinking_budget is not None:
        name = chat.get_client_field_name("thinking_budget")
        warnings.append(f"`{name}` has no effect: this model's reasoning cannot be limited.")
    adapted, ignored = adapt_chat(replace(chat, thinking_budget=None, reasoning_effort=None), model)
    chat = replace(adapted, reasoning_effort=chat.reasoning_effort)
    content = msgspec.json.encode(write_chat(chat, request)).decode()
    return PreparedPrompt(content, warnings=(*warnings, *ignored))


def _make_error(field: str, names: Mapping[str, str]) -> Unsupported:
    name = names.get(field, field)
    return Unsupported(f"`{name}` is not supported: this model's server renders chats.", param=name)


def _check_constraint(constraint: Constraint | None) -> Iterator[str]:
    """Reject a constraint that is strict or cannot be passed on; yield a warning for others."""
    if constraint is None:
        return
    if constraint.kind != "json" or constraint.strict:
        raise Unsupported(
            f"`{constraint.param}` cannot be enforced: this model is served by another server's "
            "chat API.",
            param=constraint.param,
        )
    yield f"`{constraint.param}` {NOT_ENFORCED}"


def _check_tools(chat: Chat) -> Iterator[str]:
    """Reject strict tools; yield a warning for a choice that cannot be enforced."""
    for tool in chat.callable_tools:
        if tool.strict or tool.input is not None:
            param = tool.param if tool.input is None else tool.input.param
            raise Unsupported(
                f"`{param}` cannot be enforced: this model is served by another server's chat API.",
                param=param,
            )
    if chat.callable_tools and chat.tool_choice == "required":
        yield f"`tool_choice` {NOT_ENFORCED}"
    if chat.callable_tools and not chat.parallel_tool_calls:
        yield f"`{chat.get_client_field_name('parallel_tool_calls')}` {NOT_ENFORCED}"


def write_chat(chat: Chat, request: Request) -> dict[str, Json]:
    """Return the fields of a request to a chat API, without model and sampling."""
    fields: dict[str, Json] = {"messages": [write_message(message) for message in chat.messages]}
    tools = chat.callable_tools
    if tools:
        fields["tools"] = [write_tool(tool) for tool in tools]
        if chat.tool_choice == "required":
            fields["tool_choice"] = (
                {"type": "function", "function": {"name": tools[0].name}}
                if chat.forces_named_tool and len(tools) == 1
                else "required"
            )
        if not chat.parallel_tool_calls:
            fields["parallel_tool_calls"] = False
    if request.constraint is not None:
        fields["response_format"] = write_response_format(request.constraint)
    if request.stop:
        fields["stop"] = list(request.stop)
    if chat.reasoning_effort is not None:
        fields["reasoning_effort"] = chat.reasoning_effort
    return fields


def write_message(message: Message) -> dict[str, Json]:
    text = "".join(part.text for part in message.content if isinstance(part, TextPart))
    written: dict[str, Json] = {"role": message.role, "content": text}
    if message.name is not None:
        written["name"] = message.name
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        written["content"] = text or None
        written["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return written


def write_tool(tool: Tool) -> dict[str, Json]:
    function: dict[str, Json] = {
        "name": tool.name,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def write_response_format(constraint: Constraint) -> dict[str, Json]:
    if constraint.value is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": constraint.value},
    }
