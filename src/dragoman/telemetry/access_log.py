"""The log line of a request, and the debug lines about its parameters and calls.

Every request writes one line when it has ended, however it ends. It contains neither prompts nor
answers nor keys. At level `debug` there are two more lines, about what the client asked and
about what the model generated; prompt and output are in the second if the operator allows it.
"""

from __future__ import annotations

import logging
from collections import Counter

import msgspec

from dragoman.errors import DragomanError
from dragoman.telemetry.log_format import LogEvent, escape_text
from dragoman.telemetry.record import RequestRecord
from dragoman.types import Chat, Json, Request

log = logging.getLogger("dragoman.access")
MAX_NAMES = 16
MAX_FIELD = 1000  # characters of one field of a line
MAX_CONTENT = 20_000  # characters of a prompt or an answer


def log_request(record: RequestRecord, level: int = logging.INFO) -> None:
    """Write the line of a request that has ended."""
    if not log.isEnabledFor(level):
        return
    method, path = escape_text(record.method, 16), escape_text(record.path)
    duration = round(1000 * record.seconds, 1)
    parts = {"method": method, "path": path, "status": record.status, "duration_ms": duration}
    message = f"{method} {path} {record.status} {duration:.0f} ms"
    log.log(level, LogEvent(message, make_fields(record), parts, MAX_FIELD))


def log_rejection(error: DragomanError) -> None:
    """Write the line of a request that is rejected before it is complete."""
    record = RequestRecord(method="-", path="-")
    record.set_error(error)
    log_request(record)


def make_fields(record: RequestRecord) -> dict[str, Json]:
    """Return what is known about a request that has ended."""
    usage = record.usage
    unfinished = record.unfinished_tokens
    first_token = None if record.first_token is None else record.first_token - record.started
    return {
        "model": record.model or escape_text(record.requested_model),
        "prompt_tokens": usage.prompt or None,
        "cached_tokens": usage.cached or None,
        "completion_tokens": usage.completion + unfinished or None,
        "reasoning_tokens": usage.reasoning or None,
        "cancelled_tokens": unfinished or None,
        "queue_ms": _to_milliseconds(record.get_seconds("queue")),
        "prefill_ms": _to_milliseconds(record.get_seconds("prefill")),
        "first_token_ms": _to_milliseconds(first_token),
        "tokens_per_second": _round(record.tokens_per_second),
        "finish": list(dict.fromkeys(record.finishes)),
        "tools": _count_tools(record.request),
        "tool_calls": list_call_names(record),
        "rejected_calls": [escape_text(reason) for reason in record.rejected_calls[:MAX_NAMES]],
        "warnings": list(dict.fromkeys(record.warnings))[:MAX_NAMES],
        "error": record.error_code,
        "request_id": record.request_id,
        "response_id": record.response_id,
        "key": record.key_name,
        "owner": record.owner[:8],
    }


def list_call_names(record: RequestRecord) -> list[str]:
    """Return the names of the tools that the model called, with how often it called each."""
    if not record.call_names:
        return []
    counts = Counter(escape_text(name, 64) for name in record.call_names)
    return [
        name if count == 1 else f"{name}×{count}"
        for name, count in list(counts.items())[:MAX_NAMES]
    ]


def _count_tools(request: Request | None) -> int | None:
    chat = request.prompts[0] if request is not None and request.prompts else None
    return len(chat.tools) or None if isinstance(chat, Chat) else None


def _to_milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 1)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def log_parameters(record: RequestRecord) -> None:
    """Write what a client asked, without any text."""
    request = record.request
    if request is None or not log.isEnabledFor(logging.DEBUG):
        return
    chat = request.prompts[0] if request.prompts else None
    parameters: dict[str, Json] = {
        "request_id": record.request_id,
        "api": record.api,
        "model": record.model,
        "stream": request.stream,
        "n": request.n,
        "stop": list(request.stop),
        "sampling": msgspec.to_builtins(request.sampling),
        "constraint": None if request.constraint is None else request.constraint.kind,
    }
    if isinstance(chat, Chat):
        parameters |= {
            "messages": len(chat.messages),
            "tools": [tool.name for tool in chat.tools[:MAX_NAMES]],
            "tool_choice": chat.tool_choice if chat.tools else None,
            "reasoning_effort": chat.reasoning_effort,
        }
    log.debug(LogEvent("request", parameters, limit=MAX_CONTENT))


def log_answer(record: RequestRecord) -> None:
    """Write what the model generated."""
    if not (record.choices and log.isEnabledFor(logging.DEBUG)):
        return
    answer: dict[str, Json] = {
        "request_id": record.request_id,
        "model": record.model,
        "finish": list(record.finishes),
        "tool_calls": list_call_names(record),
        "usage": msgspec.to_builtins(record.usage),
        "stages_ms": {
            name: round(1000 * seconds, 2) for name, seconds in record.sum_stages().items()
        },
    }
    if record.logs_content:
        answer |= {"prompt": list(record.prompts), "output": list(record.outputs)}
    log.debug(LogEvent("answer", answer, limit=MAX_CONTENT))
