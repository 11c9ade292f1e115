"""The response itself, as it is told in events, given back whole and kept.

All its fields are there always, null where nothing is to be said. What repeats the request comes
from the frame; the rest is what became of the answer.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.errors import ContextOverflow, DragomanError
from dragoman.events import Usage
from dragoman.protocols.responses.types import Item, ResponseInfo
from dragoman.protocols.shared.openai import encode

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]

# what the fields that repeat a request are without one
UNSAID: dict[str, Any] = {
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

# the event that a response ends with; there is none of its own for one that was cancelled, and
# this is the one that all accumulators end on without an error to show
ENDS: dict[str, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}

LOST = "The server stopped before this response was finished."
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def make_resource(frame: ResponseInfo) -> dict[str, Any]:
    """The resource of a response that nothing became of yet."""
    return {
        "id": frame.id,
        "object": "response",
        "created_at": frame.created,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": frame.model,
        "output": [],
        "usage": None,
        **UNSAID,
        **frame.echoed_fields,
    }


def encode_usage(spent: Usage) -> dict[str, Any]:
    return {
        "input_tokens": spent.prompt,
        "input_tokens_details": {"cached_tokens": spent.cached, "cache_write_tokens": 0},
        "output_tokens": spent.completion,
        "output_tokens_details": {"reasoning_tokens": spent.reasoning},
        "total_tokens": spent.prompt + spent.completion,
    }


def encode_response_error(failure: DragomanError) -> dict[str, str]:
    """An error in the words that agents know: by them they wait, try again, or make room."""
    message = failure.message
    if isinstance(failure, ContextOverflow):
        code = "context_length_exceeded"
    elif failure.status == 429:
        code = "rate_limit_exceeded"
        if failure.retry_after:
            message += f" Please try again in {failure.retry_after:g}s."
    elif failure.status == 503:
        code = "server_is_overloaded"
    else:
        code = "invalid_prompt" if failure.status < 500 else "server_error"
    return {"code": code, "message": message}


def mark_failed(body: bytes) -> bytes:
    """A response that was kept unfinished, as that of a server that died."""
    return _stopped(body, "failed", {"code": "server_error", "message": LOST})


def mark_cancelled(body: bytes) -> bytes:
    """A response that was kept unfinished, as one that is not wanted any more."""
    return _stopped(body, "cancelled", None)


def _stopped(body: bytes, status: Status, why: dict[str, str] | None) -> bytes:
    kept = _decode(body)
    if kept["status"] in ENDS:
        return body
    kept |= {"status": status, "error": why, "completed_at": None}
    kept["output"] = [mark_incomplete(item) for item in kept["output"]]
    return encode(kept)


def mark_incomplete(item: Item) -> Item:
    """An item that nothing more will become of."""
    if item.get("status") in ("in_progress", "calling"):
        return item | {"status": "incomplete"}
    return item
