"""Chooses the reader of a call's body by the way in which the format writes name and arguments."""

from __future__ import annotations

from dragoman.output.arguments.call_body import read_named_call, read_objects
from dragoman.output.arguments.elements import read_nested_call
from dragoman.output.arguments.pythonic import read_python_calls
from dragoman.output.arguments.tags import read_tagged_call
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import (
    CallBody,
    JsonObjects,
    NamedObject,
    NestedElements,
    PythonCalls,
    TaggedArguments,
)
from dragoman.output.text_buffer import ReadSteps, TextBuffer


def read_body(
    buffer: TextBuffer, body: CallBody, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Return the reader of a body. `after`: markers that can follow it."""
    match body:
        case JsonObjects():
            return read_objects(buffer, body, calls)
        case NamedObject():
            return read_named_call(buffer, body, calls, after)
        case TaggedArguments():
            return read_tagged_call(buffer, body, calls, after)
        case NestedElements():
            return read_nested_call(buffer, body, calls, after)
        case PythonCalls():
            return read_python_calls(buffer, body, calls)


def can_start(body: CallBody, char: str) -> bool:
    """Whether a body can start with this character."""
    match body:
        case JsonObjects():
            return char in ("{", "[")
        case PythonCalls():
            return char == "[" or char.isalpha()
    return char not in ("{", "[")
