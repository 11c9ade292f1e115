"""What a response repeats of its request."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from dragoman.protocols.responses.decode.fields import (
    DecodedRequest,
    ResponseReasoningOptions,
    ResponseTextFormat,
    ResponseTextOptions,
)
from dragoman.protocols.responses.secrets import remove_secrets
from dragoman.types import Sampling

OPTIONAL = {
    "function": ("description", "parameters", "strict"),
    "custom": ("description",),
    "namespace": ("description",),
    "mcp": ("server_description", "allowed_tools"),
}
USUAL = (("custom", "format", {"type": "text"}), ("mcp", "require_approval", "always"))


def make_echoed_fields(asked: DecodedRequest, model: str, sampling: Sampling) -> dict[str, Any]:
    """The fields of a response that are settled before it: by its request and the model's usual."""
    said = asked.fields
    thinking = said.reasoning or ResponseReasoningOptions()
    conversation = asked.conversation_id
    return {
        "model": model,
        "instructions": said.instructions,
        "previous_response_id": said.previous_response_id,
        "conversation": None if conversation is None else {"id": conversation},
        "tools": [show_tool(tool) for tool in said.tools or ()],
        "tool_choice": "auto" if said.tool_choice is None else said.tool_choice,
        "parallel_tool_calls": said.parallel_tool_calls is not False,
        "max_tool_calls": said.max_tool_calls,
        "max_output_tokens": said.max_output_tokens,
        "text": _text(said.text or ResponseTextOptions()),
        "reasoning": {"effort": thinking.effort, "summary": thinking.requested_summary},
        "temperature": _or(sampling.temperature, 1.0),
        "top_p": _or(sampling.top_p, 1.0),
        "presence_penalty": _or(sampling.presence_penalty, 0.0),
        "frequency_penalty": _or(sampling.frequency_penalty, 0.0),
        "top_logprobs": said.top_logprobs or 0,
        "truncation": said.truncation or "disabled",
        "store": asked.is_stored,
        "background": bool(said.background),
        "service_tier": "default",
        "metadata": said.metadata or {},
        "safety_identifier": said.safety_identifier,
        "prompt_cache_key": said.prompt_cache_key,
        "prompt_cache_retention": said.prompt_cache_retention,
        "user": said.user,
    }


def show_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with all its keys, and without what gives access to a server."""
    plain: dict[str, Any] = remove_secrets(tool)
    whole = plain | {name: plain.get(name) for name in OPTIONAL.get(str(plain.get("type")), ())}
    if whole.get("type") == "namespace":
        inside = whole.get("tools")  # of one that was left out it may be anything
        tools = inside if isinstance(inside, list) else []
        whole["tools"] = [show_tool(tool) for tool in tools if isinstance(tool, dict)]
    for kind, name, usual in USUAL:
        if whole.get("type") == kind and whole.get(name) is None:
            whole[name] = usual
    return whole


def _text(said: ResponseTextOptions) -> dict[str, Any]:
    form = said.format or ResponseTextFormat("text")
    whole = asdict(form) if form.type == "json_schema" else {"type": form.type}
    return {"format": whole, "verbosity": said.verbosity or "medium"}


def _or(said: float | None, default: float) -> float:
    return default if said is None else said
