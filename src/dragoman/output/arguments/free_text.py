"""Reads calls whose content is the text of the tool's only parameter, on lines of its own."""

from __future__ import annotations

from dragoman.output.arguments.json_strings import escape, quote
from dragoman.output.calls import CallRecorder
from dragoman.output.text_buffer import (
    MarkerSet,
    ReadSteps,
    TextBuffer,
    peek_char,
    read_marker,
    stream_until,
)

LINE_BREAK = MarkerSet(["\n"])


def read_free_text(
    buffer: TextBuffer, calls: CallRecorder, name: str, ends: MarkerSet
) -> ReadSteps[bool]:
    """Read the text of a tool's only parameter, up to one of `ends`.

    False if the tool has another number of parameters, or none that is a string, and if the text
    does not start on a new line or may be an object.
    """
    types = calls.tools.get_parameter_types(calls.tools.resolve_name(name))
    if len(types) != 1 or not all("string" in of_key or not of_key for of_key in types.values()):
        return False
    if (yield from read_marker(buffer, LINE_BREAK)) < 0:
        return False
    if (yield from peek_char(buffer)) in ("{", ""):
        return False
    [key] = types
    calls.open_call(name)
    calls.get_missing_end = lambda: '"}'
    calls.write_arguments(f'{{{quote(key)}: "')
    marker, _ = yield from stream_until(
        buffer, ends, lambda text: calls.write_arguments(escape(text))
    )
    buffer.pos += marker.startswith("\n")
    calls.write_arguments('"}')
    calls.close_call()
    return True
