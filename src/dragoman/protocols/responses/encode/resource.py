"""The response resource, as it is sent in events, returned whole and stored.

All its fields are always there, null where they have no value. Those that repeat the request come
from `ResponseInfo`; the others describe the answer.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from dragoman.errors import ContextOverflow, DragomanError
from dragoman.events import Usage
from dragoman.protocols.responses.types import Item, ResponseInfo
from dragoman.protocols.shared.openai import encode
from dragoman.types import Json

ResponseStatus: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]

# Defaults of the fields that repeat the request.
DEFAULT_FIELDS: dict[str, Json] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}

# The last event of a response, by its status. There is no event for a cancelled response; this is
# the one on which all clients stop accumulating without raising an error.
FINAL_EVENTS: dict[str, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}

SERVER_STOPPED = "The server stopped before this response was finished."
_decode = msgspec.json.Decoder(dict[str, Json]).decode


def make_resource(info: ResponseInfo) -> dict[str, Json]:
    """Return the resource of a response that has no output yet."""
    return {
        "id": info.id,
        "object": "response",
        "created_at": info.created,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": info.model,
        "output": [],
        "usage": None,
        **DEFAULT_FIELDS,
        **info.echoed_fields,
    }


def encode_usage(usage: Usage) -> dict[str, Json]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def encode_response_error(error: DragomanError) -> dict[str, str]:
    """Encode an error with the codes by which agents wait, retry or shorten the conversation."""
    message = error.message
    if isinstance(error, ContextOverflow):
        code = "context_length_exceeded"
    elif error.status == 429:
        code = "rate_limit_exceeded"
        if error.retry_after:
            message += f" Please try again in {error.retry_after:g}s."
    elif error.status == 503:
        code = "server_is_overloaded"
    else:
        code = "invalid_prompt" if error.status < 500 else "server_error"
    return {"code": code, "message": message}


def mark_failed(body: bytes) -> bytes:
    """Return an unfinished stored response as failed, because its server died."""
    resource = _decode(body)
    if resource["status"] in FINAL_EVENTS:
        return body
    error = {"code": "server_error", "message": SERVER_STOPPED}
    resource |= {"status": "failed", "error": error, "completed_at": None}
    resource["output"] = [mark_incomplete(item) for item in resource["output"]]
    return encode(resource)


def mark_incomplete(item: Item) -> Item:
    """Return an item that will not be continued."""
    if item.get("status") in ("in_progress", "calling"):
        return item | {"status": "incomplete"}
    return item
