"""Reads values that are held back until they are complete."""

from __future__ import annotations

from functools import lru_cache

from dragoman.output.arguments.cast import load_arguments
from dragoman.output.arguments.end_markers import make_end_markers
from dragoman.output.arguments.schemas.argument_types import ArgumentTypes
from dragoman.output.arguments.values.reader import ValueReader
from dragoman.output.calls import CallRecorder
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
)


@lru_cache(maxsize=64)
def _make_types(tools: tuple[str, ...]) -> ArgumentTypes:
    return ArgumentTypes(tools=tools)


def _make_reader(buffer: TextBuffer, calls: CallRecorder, parts: list[str]) -> ValueReader:
    """Return a reader for a value in which the next call of a declared tool may start."""
    value = ValueReader(buffer, parts.append, types=_make_types(calls.tools.names))
    value.ends, value.colon_optional = calls.ends, calls.is_certain
    return value


def collect_value(buffer: TextBuffer, calls: CallRecorder) -> ReadSteps[str]:
    """Read a value without emitting it."""
    parts: list[str] = []
    yield from _make_reader(buffer, calls, parts).read()
    return "".join(parts)


def collect_arguments(
    buffer: TextBuffer, calls: CallRecorder, fences: MarkerSet | None = None
) -> ReadSteps[str]:
    """Read a value that contains the arguments, and return them; brackets may be missing.

    `fences`: markers that end a code block around the value.
    """
    parts: list[str] = []
    value = _make_reader(buffer, calls, parts)
    if fences is not None:
        value.ends = make_end_markers(calls.ends.join(fences), calls.ends.call_opens)
    try:
        yield from value.read()
    except (Mismatch, UnexpectedEnd):
        if not (calls.is_certain and parts) or buffer.is_truncated:
            raise
        parts.append(value.get_missing_end())
    return load_arguments("".join(parts))
