"""Finds out, from a model's own chat template, how the model writes calls and reasoning.

    found = detect(template)
    OutputParser(found.tools, found.reasoning, prompt=prompt)

Detection is the proof: made-up turns of the assistant's are rendered by the template and read back
with every format that could be it; the one that gives back what went in is the one. Nothing is
decided by the name of a model or of a file.

`probe` renders, `thinking` turns the switches, `proof` reads back and compares, `choose` decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Any

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
from dragoman.detection.round_trip import CALL, RoundTrip
from dragoman.formats import find_tools

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

GENERIC = "hermes_json"
NO_CHECKPOINT_FORMATS = CheckpointFormats()


def detect(
    template: str, vocabulary: Container[str] = (), config: Mapping[str, Any] | None = None
) -> DetectedFormats:
    """The formats of a template. What was found from the template alone is remembered.

    `vocabulary` holds the model's special tokens, `config` its tokenizer's configuration.
    """
    given = read_checkpoint_formats(config) if config else None
    if given is not None:
        return _run_detection(template, vocabulary, given)
    found = _detect_cached(template)
    if found.confidence == "generic" or found.reasoning is None:
        return (
            found
            if vocabulary == ()
            else _run_detection(template, vocabulary, NO_CHECKPOINT_FORMATS)
        )
    return found


@lru_cache(maxsize=64)
def _detect_cached(template: str) -> DetectedFormats:
    return _run_detection(template, (), NO_CHECKPOINT_FORMATS)


def _run_detection(
    template: str, vocabulary: Container[str], given: CheckpointFormats
) -> DetectedFormats:
    probe = RenderProbe(template)
    positions = SwitchSettings(probe)
    probe.find_reasoning_form([one.switches for one in positions.all])
    scene = RoundTrip(probe, [one.switches for one in positions.distinct])
    chooser = FormatMatcher(scene, [one.opening for one in positions.distinct], vocabulary)
    calls, reasoning = _prefer_checkpoint(given, chooser)
    proof = scene.check(calls.format, reasoning.format)
    why = [f"calls: {calls.reason}" if calls.reason else "calls: nothing points to a format"]
    why.append(f"reasoning: {reasoning.reason or 'nothing points to any'}")
    why += ["time: there was not enough to find out everything"] if probe.is_incomplete else []
    tools = calls.format or find_tools(GENERIC)
    return DetectedFormats(
        tools=tools.name,
        reasoning=reasoning.format.name if reasoning.format else None,
        generic=calls.format is None,
        renders_tools=probe.capabilities.tools_rendered,
        renders_messages=probe.capabilities.renders,
        reasoning_controls=positions.describe_controls(reasoning.format),
        checks=proof,
        confidence=_rate_confidence(calls, reasoning, proof),
        reasons=tuple(why),
        equivalent=calls.equivalent,
        digest=hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
        tool_format=tools,
        reasoning_format=reasoning.format,
    )


def _prefer_checkpoint(
    given: CheckpointFormats, chooser: FormatMatcher
) -> tuple[ToolFormatChoice, ReasoningFormatChoice]:
    """What the checkpoint brought along, unless the template shows otherwise."""
    why = "the checkpoint's response template says so"
    calls = chooser.match_tools()
    if given.tools is not None and not (calls.verified and chooser.fails_round_trip(given.tools)):
        calls = ToolFormatChoice(given.tools, why, verified=calls.verified)
    reasoning = chooser.match_reasoning(calls.format)
    if given.reasoning is not None and not reasoning.verified:
        reasoning = ReasoningFormatChoice(given.reasoning, why)
    return calls, reasoning


def _rate_confidence(
    calls: ToolFormatChoice, reasoning: ReasoningFormatChoice, proof: tuple[RoundTripCheck, ...]
) -> Confidence:
    if calls.format is None:
        return "generic"
    if not calls.verified or not any(item.name == CALL and item.text for item in proof):
        return "unverified"
    whole = all(item.status != "failed" for item in proof)
    return "proved" if whole and (reasoning.verified or reasoning.format is None) else "partly"
