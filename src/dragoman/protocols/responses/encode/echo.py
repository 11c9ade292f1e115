"""The fields of a response that repeat its request."""

from __future__ import annotations

from msgspec.structs import asdict

from dragoman.protocols.responses.decode.fields import (
    DecodedRequest,
    ResponseReasoningOptions,
    ResponseTextFormat,
    ResponseTextOptions,
)
from dragoman.protocols.responses.secrets import remove_secrets
from dragoman.types import Json, Sampling

# Fields that are null where a tool does not have them, by the type of tool.
NULLABLE_FIELDS = {
    "function": ("description", "parameters", "strict"),
    "custom": ("description",),
    "namespace": ("description",),
    "mcp": ("server_description", "allowed_tools"),
}
# The type of tool, a field and its default.
FIELD_DEFAULTS = (("custom", "format", {"type": "text"}), ("mcp", "require_approval", "always"))


def make_echoed_fields(request: DecodedRequest, model: str, sampling: Sampling) -> dict[str, Json]:
    """Return the fields that are known before generation, with the model's sampling defaults."""
    fields = request.fields
    reasoning = fields.reasoning or ResponseReasoningOptions()
    conversation_id = request.conversation_id
    user = {} if fields.user is None else {"user": fields.user}  # OpenAI's is never null
    return {
        "model": model,
        "instructions": fields.instructions,
        "previous_response_id": fields.previous_response_id,
        "conversation": None if conversation_id is None else {"id": conversation_id},
        "tools": [show_tool(tool) for tool in fields.tools or ()],
        "tool_choice": "auto" if fields.tool_choice is None else fields.tool_choice,
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "max_tool_calls": fields.max_tool_calls,
        "max_output_tokens": fields.max_output_tokens,
        "text": _show_text_options(fields.text or ResponseTextOptions()),
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.requested_summary},
        "temperature": _get_or(sampling.temperature, 1.0),
        "top_p": _get_or(sampling.top_p, 1.0),
        "presence_penalty": _get_or(sampling.presence_penalty, 0.0),
        "frequency_penalty": _get_or(sampling.frequency_penalty, 0.0),
        "top_logprobs": fields.top_logprobs or 0,
        "truncation": fields.truncation or "disabled",
        "store": request.is_stored,
        "background": bool(fields.background),
        "service_tier": "flex" if fields.service_tier == "flex" else "default",
        "metadata": fields.metadata or {},
        "safety_identifier": fields.safety_identifier,
        "prompt_cache_key": fields.prompt_cache_key,
        "prompt_cache_retention": fields.prompt_cache_retention,
        **user,
    }


def show_tool(tool: dict[str, Json]) -> dict[str, Json]:
    """Return a tool with all its fields, and without credentials."""
    shown: dict[str, Json] = remove_secrets(tool)
    shown |= {name: shown.get(name) for name in NULLABLE_FIELDS.get(str(shown.get("type")), ())}
    if shown.get("type") == "namespace":
        nested = shown.get("tools")  # anything, if the namespace was dropped
        tools = nested if isinstance(nested, list) else []
        shown["tools"] = [show_tool(tool) for tool in tools if isinstance(tool, dict)]
    for kind, name, default in FIELD_DEFAULTS:
        if shown.get("type") == kind and shown.get(name) is None:
            shown[name] = default
    return shown


def _show_text_options(options: ResponseTextOptions) -> dict[str, Json]:
    text_format = options.format or ResponseTextFormat("text")
    is_schema = text_format.type == "json_schema"
    shown = asdict(text_format) if is_schema else {"type": text_format.type}
    return {"format": shown, "verbosity": options.verbosity or "medium"}


def _get_or(value: float | None, default: float) -> float:
    return default if value is None else value
