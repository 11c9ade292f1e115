"""Skips markup around a call and inside it that is not part of it."""

from __future__ import annotations

from dragoman.output.arguments.damage import TURN_ENDS
from dragoman.output.arguments.end_markers import is_at_end
from dragoman.output.calls import CallRecorder
from dragoman.output.text_buffer import (
    MarkerSet,
    ReadSteps,
    TextBuffer,
    read_marker,
    skip_space,
)

FENCES = ("```json", "```JSON", "```")  # of code blocks, which models put around arguments
_FENCES = MarkerSet(FENCES)


def skip_fence(buffer: TextBuffer) -> ReadSteps[bool]:
    """Skip the fence of a code block and white space around it; False if there is none."""
    yield from skip_space(buffer)
    is_fence = (yield from read_marker(buffer, _FENCES)) >= 0
    yield from skip_space(buffer)
    return is_fence


def skip_end_of_turn(buffer: TextBuffer, calls: CallRecorder) -> ReadSteps[bool]:
    """Skip a token that ends a turn, unless it also ends the calls; False if there is none."""
    if (yield from is_at_end(buffer, calls.ends)):
        return False
    return (yield from read_marker(buffer, TURN_ENDS)) >= 0
