"""Detects from a model's own chat template how the model writes tool calls and reasoning.

    formats = detect(template)
    OutputParser(formats.tools, formats.reasoning, prompt=prompt)

Detection is a round trip: the template renders made-up assistant turns, and every candidate format
parses them. The format that returns what went in is the right one. The name of a model or a file
decides nothing.

`render_probe` renders, `reasoning_switch` tries the template's switches, `round_trip` parses and
compares, `match` decides. `vocabulary` decides for templates that write no call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from functools import lru_cache

from dragoman.detection.match import FormatMatcher, ReasoningFormatChoice, ToolFormatChoice
from dragoman.detection.reasoning_switch import SwitchSettings
from dragoman.detection.render_probe import RenderProbe
from dragoman.detection.response_template import CheckpointFormats, read_checkpoint_formats
from dragoman.detection.result import (
    Confidence,
    DetectedFormats,
    ProbeCall,
    ProbeTurn,
    ReasoningControls,
    ReasoningSwitch,
    RoundTripCheck,
)
from dragoman.detection.round_trip import ONE_CALL, RoundTrip
from dragoman.formats import find_tools
from dragoman.types import Json

__all__ = [
    "DetectedFormats",
    "ProbeCall",
    "ProbeTurn",
    "ReasoningControls",
    "ReasoningSwitch",
    "RoundTripCheck",
    "detect",
    "read_checkpoint_formats",
]

GENERIC_FORMAT = "hermes_json"
NO_CHECKPOINT_FORMATS = CheckpointFormats()


def detect(
    template: str, vocabulary: Container[str] = (), config: Mapping[str, Json] | None = None
) -> DetectedFormats:
    """Return the formats of a template. Results that need only the template are cached.

    `vocabulary`: the model's special tokens. `config`: its tokenizer configuration.
    """
    checkpoint = read_checkpoint_formats(config) if config else None
    if checkpoint is not None:
        return _run_detection(template, vocabulary, checkpoint)
    detected = _detect_cached(template)
    is_undecided = detected.confidence in ("generic", "unverified") or detected.reasoning is None
    if is_undecided and vocabulary != ():
        return _run_detection(template, vocabulary, NO_CHECKPOINT_FORMATS)
    return detected


@lru_cache(maxsize=64)
def _detect_cached(template: str) -> DetectedFormats:
    return _run_detection(template, (), NO_CHECKPOINT_FORMATS)


def _run_detection(
    template: str, vocabulary: Container[str], checkpoint: CheckpointFormats
) -> DetectedFormats:
    probe = RenderProbe(template)
    settings = SwitchSettings(probe)
    probe.find_reasoning_form([setting.switches for setting in settings.all])
    round_trip = RoundTrip(probe, [setting.switches for setting in settings.distinct])
    matcher = FormatMatcher(
        round_trip, [setting.opening for setting in settings.distinct], vocabulary
    )
    calls, reasoning = _prefer_checkpoint(checkpoint, matcher)
    checks = round_trip.check(calls.format, reasoning.format)
    reasons = [f"calls: {calls.reason}" if calls.reason else "calls: no evidence of a format"]
    reasons.append(f"reasoning: {reasoning.reason or 'no evidence of a format'}")
    reasons += ["time: the limit was reached before every check ran"] if probe.is_incomplete else []
    tools = calls.format or find_tools(GENERIC_FORMAT)
    return DetectedFormats(
        tools=tools.name,
        reasoning=reasoning.format.name if reasoning.format else None,
        is_generic=calls.format is None,
        renders_tools=probe.capabilities.tools_rendered,
        renders_messages=probe.capabilities.renders,
        reasoning_controls=settings.describe_controls(reasoning.format),
        checks=checks,
        confidence=_rate_confidence(calls, reasoning, checks),
        reasons=tuple(reasons),
        equivalent=calls.equivalent,
        digest=hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
        tool_format=tools,
        reasoning_format=reasoning.format,
    )


def _prefer_checkpoint(
    checkpoint: CheckpointFormats, matcher: FormatMatcher
) -> tuple[ToolFormatChoice, ReasoningFormatChoice]:
    """Return the checkpoint's own formats, unless the template contradicts them."""
    reason = "the checkpoint's response template defines it"
    calls = matcher.match_tools()
    if checkpoint.tools is not None and not (
        calls.is_verified and matcher.fails_round_trip(checkpoint.tools)
    ):
        calls = ToolFormatChoice(checkpoint.tools, reason, is_verified=calls.is_verified)
    reasoning = matcher.match_reasoning(calls.format)
    if checkpoint.reasoning is not None and not reasoning.is_verified:
        reasoning = ReasoningFormatChoice(checkpoint.reasoning, reason)
    return calls, reasoning


def _rate_confidence(
    calls: ToolFormatChoice, reasoning: ReasoningFormatChoice, checks: tuple[RoundTripCheck, ...]
) -> Confidence:
    if calls.format is None:
        return "generic"
    if not calls.is_verified or not any(check.name == ONE_CALL and check.text for check in checks):
        return "unverified"
    all_passed = all(check.status != "failed" for check in checks)
    is_verified = all_passed and (reasoning.is_verified or reasoning.format is None)
    return "verified" if is_verified else "partly_verified"
