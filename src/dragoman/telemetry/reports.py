"""What an answer says about its request: timings, a trace, the rendered prompt and the raw output.

An answer carries a report only if its request asks for one, as fields next to the answer: `timings`
with the field names of llama-server, `brick_trace`, `step_trace` or `layer_trace`, and `debug`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

from dragoman.errors import BadRequest
from dragoman.telemetry.record import RequestRecord, get_record
from dragoman.types import Json, ReportOptions, TraceLevel

TIMINGS_HEADER = "x-dragoman-timings"
TRACE_HEADER = "x-trace-level"
DEBUG_HEADER = "x-dragoman-debug"
REPORT_HEADERS = (TIMINGS_HEADER, TRACE_HEADER, DEBUG_HEADER)
DEBUG_PARTS = ("prompt", "prompt_ids", "output")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def parse_report_headers(
    timings: str | None, trace: str | None, debug: str | None
) -> ReportOptions:
    """Return what the headers of a request ask for; None is a header that it does not have."""
    parts = [part for part in map(str.strip, (debug or "").lower().split(",")) if part]
    for part in parts:
        if part not in DEBUG_PARTS:
            known = ", ".join(f"`{name}`" for name in DEBUG_PARTS)
            raise BadRequest(f"`{DEBUG_HEADER}` takes {known}.", param=DEBUG_HEADER)
    return ReportOptions(
        timings=_parse_switch(timings or "", TIMINGS_HEADER),
        trace=_parse_level(trace),
        prompt="prompt" in parts,
        prompt_ids="prompt_ids" in parts,
        output="output" in parts,
    )


def _parse_switch(text: str, name: str) -> bool:
    value = text.strip().lower()
    if value not in _TRUE + _FALSE:
        raise BadRequest(f"`{name}` must be `true` or `false`.", param=name)
    return value in _TRUE


def _parse_level(text: str | None) -> TraceLevel | None:
    level = (text or "").strip().lower()
    if level in _FALSE or level == "none":
        return None
    if level in _TRUE:
        return "step"
    if level not in get_args(TraceLevel):
        known = ", ".join(f"`{name}`" for name in get_args(TraceLevel))
        raise BadRequest(f"`{TRACE_HEADER}` must be one of {known}.", param=TRACE_HEADER)
    return cast(TraceLevel, level)


def report_current_request() -> dict[str, Json]:
    """Return what the current request asks to know about itself."""
    return make_report(get_record())


def make_report(record: RequestRecord) -> dict[str, Json]:
    """Return the fields that the request asks for; called when the answer is complete."""
    options, report = record.options, {}
    if options.timings or options.timings_per_token:
        report["timings"] = make_timings(record)
    if options.trace is not None:
        report[f"{options.trace}_trace"] = _make_trace(record, options.trace)
    debug: dict[str, Json] = {}
    if options.prompt:
        debug["prompt"] = _unwrap_single(record.prompts)
    if options.prompt_ids:
        debug["prompt_ids"] = _unwrap_single(record.prompt_ids)
    if options.output:
        debug["output"] = _unwrap_single(record.outputs)
        if record.rejected_calls:
            debug["rejected_calls"] = record.rejected_calls
    if debug:
        report["debug"] = debug
    return report


def make_timings(record: RequestRecord) -> dict[str, Json]:
    """Return tokens, milliseconds and speed of prompt and answer, as llama-server names them.

    `prompt_n` counts the tokens that the engine read, without the cached ones. Engines say how many
    those are when a choice is finished; until then, the fields of the prompt are absent.
    """
    usage, seconds = record.usage, record.sum_stages()
    completion = record.completion_tokens
    drafts = {"draft_n": usage.drafted, "draft_n_accepted": usage.accepted}
    prompt = _make_speed("prompt", usage.prompt - usage.cached, seconds.get("prefill", 0.0))
    return {
        **({"cache_n": usage.cached, **prompt} if usage.prompt else {}),
        **_make_speed("predicted", completion, seconds.get("generate", 0.0)),
        **(drafts if usage.drafted else {}),
    }


def _make_speed(name: str, tokens: int, seconds: float) -> dict[str, Json]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": round(1000 * seconds, 3),
        f"{name}_per_token_ms": round(1000 * seconds / tokens, 3) if tokens else 0.0,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds else 0.0,
    }


def _make_trace(record: RequestRecord, level: str) -> dict[str, Json]:
    """Return how long each stage took, and what the engine reports about itself."""
    operations = [
        {"name": name, "time_us": _to_microseconds(seconds)}
        for name, seconds in record.sum_stages().items()
    ]
    for operation in record.engine_trace:
        details = {"details": operation.details} if operation.details else {}
        time_us = _to_microseconds(operation.seconds)
        operations.append({"name": f"engine.{operation.name}", "time_us": time_us, **details})
    return {
        "level": level,
        "operations": len(operations),
        "total_time_us": _to_microseconds(record.elapsed),
        "breakdown": operations,
    }


def _to_microseconds(seconds: float) -> int:
    return round(1e6 * seconds)


def _unwrap_single(values: Sequence[Json]) -> Json:
    """Return the only value, or the list of several (prompts, choices, or rounds)."""
    return values[0] if len(values) == 1 else list(values)
