"""Readers of calls, one for each way to write a name and its arguments.

Each is a generator that begins where the body begins, tells `Calls` what it finds, and returns
after the last character of the body. What cannot be a call is `Refused`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from dragoman.output.arguments.cast import cast, load_value, to_json
from dragoman.output.arguments.json_strings import LONE_SURROGATE
from dragoman.output.arguments.literal import ValueReader
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import JsonObjects, NamedObject
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    peek_char,
    read_marker,
    read_until,
    skip_space,
)


@lru_cache(maxsize=512)
def marker_set(*which: str) -> MarkerSet:
    return MarkerSet(which)


def next_char(buffer: TextBuffer) -> ReadSteps[str]:
    """The next char that is no white space; the text may be cut before one comes."""
    yield from skip_space(buffer)
    char = yield from peek_char(buffer)
    if not char:
        raise UnexpectedEnd
    return char


def read_arguments_value(
    buffer: TextBuffer, calls: CallRecorder, body: NamedObject | None = None
) -> ReadSteps[None]:
    """Arguments that are one value, handed out as they come."""
    quotes = marker_set(*body.string_markers) if body is not None and body.string_markers else None
    loose = body is not None and body.unquoted_values
    types = (
        calls.tools.parameter_types(calls.name)
        if body is not None and body.types_from_schema
        else None
    )
    value = ValueReader(buffer, calls.write_arguments, quotes, loose, types)
    value.must_be_object = True
    value.colon_optional = body is not None
    value.end_markers = calls.end_markers
    value.cast = cast
    value.casts_strings = body is not None and body.casts_strings
    calls.missing_end, calls.held_arguments = value.missing_end, value.held_text
    yield from value.read()


def collect_value(buffer: TextBuffer) -> ReadSteps[str]:
    """A value that nothing is done with yet."""
    parts: list[str] = []
    yield from ValueReader(buffer, parts.append).read()
    return "".join(parts)


# Objects


def read_objects(buffer: TextBuffer, body: JsonObjects, calls: CallRecorder) -> ReadSteps[None]:
    """One object, or a list of them."""
    char = yield from next_char(buffer)
    if char == "{":
        yield from read_call_object(buffer, body, calls)
        return
    if char != "[":
        raise Mismatch
    buffer.pos += 1
    yield from read_object_list(buffer, body, calls)


def read_object_list(buffer: TextBuffer, body: JsonObjects, calls: CallRecorder) -> ReadSteps[None]:
    """The objects of a list whose bracket was read."""
    while True:
        char = yield from next_char(buffer)
        if char == "]":
            buffer.pos += 1
            if not calls.has_call and not calls.has_rejected_call:
                raise Mismatch
            return
        if char == "{":
            calls.start_next_call()
            yield from read_call_object(buffer, body, calls)
        elif char == "," and (calls.has_call or calls.has_rejected_call):
            buffer.pos += 1
        else:
            raise Mismatch


class _CallFields:
    """What an object said so far."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.id = ""
        self.early_arguments: str | None = None  # arguments that came before the name
        self.is_emitted = False
        self.is_nested = False  # whether it stands in another one
        self.has_other_members = False  # whether there are members that are no part of a call


def read_call_object(buffer: TextBuffer, body: JsonObjects, calls: CallRecorder) -> ReadSteps[None]:
    said = _CallFields()
    yield from read_members(buffer, body, calls, said)
    if said.name is None:
        raise Mismatch
    if not said.is_emitted:
        if said.early_arguments is None and (body.requires_arguments or said.has_other_members):
            raise Mismatch
        calls.open_call(said.name, said.id)
        calls.write_arguments(said.early_arguments if said.early_arguments is not None else "{}")
    calls.close_call()


def read_members(
    buffer: TextBuffer, body: JsonObjects, calls: CallRecorder, said: _CallFields
) -> ReadSteps[None]:
    """The members of an object, from its opening brace to its closing one."""
    buffer.pos += 1
    while True:
        char = yield from next_char(buffer)
        if char == "}":
            buffer.pos += 1
            return
        if char == ",":
            buffer.pos += 1
            continue
        if char not in ('"', "'"):
            raise Mismatch
        key = load_value((yield from collect_value(buffer)))
        char = yield from next_char(buffer)
        if char != ":" or not isinstance(key, str):
            raise Mismatch
        buffer.pos += 1
        yield from skip_space(buffer)
        yield from read_member(buffer, body, calls, said, key)


def read_member(
    buffer: TextBuffer, body: JsonObjects, calls: CallRecorder, said: _CallFields, key: str
) -> ReadSteps[None]:
    char = yield from peek_char(buffer)
    if body.keyed and said.name is None:
        said.name = key
        yield from read_arguments(buffer, calls, said, char)
    elif key in body.name and char == "{" and said.name is None and not said.is_nested:
        said.is_nested = True
        yield from read_members(buffer, body, calls, said)  # {"function": {"name": ..., ...}}
    elif key in body.name and said.name is None:
        if char not in ("'", '"'):
            raise Mismatch
        name = load_value((yield from collect_value(buffer)))
        if not isinstance(name, str) or not name or LONE_SURROGATE.search(name):
            raise Mismatch
        said.name = name
    elif key in body.arguments and not said.is_emitted and said.early_arguments is None:
        yield from read_arguments(buffer, calls, said, char)
    else:
        value = yield from collect_value(buffer)
        if key in body.id:
            found = load_value(value)
            said.id = found if isinstance(found, str) and not LONE_SURROGATE.search(found) else ""
        elif key != "type":
            said.has_other_members = True


def read_arguments(
    buffer: TextBuffer, calls: CallRecorder, said: _CallFields, char: str
) -> ReadSteps[None]:
    """Arguments as an object; as text that holds one; or none at all."""
    if char == "{" and said.name is not None:
        calls.open_call(said.name, said.id)
        said.is_emitted = True
        yield from read_arguments_value(buffer, calls)
        return
    text = yield from collect_value(buffer)
    value = load_value(text)
    if isinstance(value, str) and char in ("'", '"'):
        text = value
        value = load_value(value) if value.strip() else None
    if value is None and text.strip() in ("null", ""):
        text, value = "{}", {}
    if not isinstance(value, dict):
        raise Mismatch
    said.early_arguments = made = to_json(text) or "{}"
    if said.name is not None:
        calls.open_call(said.name, said.id)
        said.is_emitted = True
        calls.write_arguments(made)


# Named


def read_named_call(buffer: TextBuffer, body: NamedObject, calls: CallRecorder) -> ReadSteps[None]:
    """A name, what ends it, and an object."""
    text, marker, end = yield from read_until(buffer, marker_set(*body.name_ends, "{"))
    if marker != "{":
        buffer.pos = end
    found = re.fullmatch(body.name_pattern, text.strip())
    if found is None:
        raise Mismatch
    groups = found.groupdict()
    yield from read_named_arguments(buffer, body, calls, groups["name"], groups.get("id") or "")


def read_named_arguments(
    buffer: TextBuffer, body: NamedObject, calls: CallRecorder, name: str, own: str = ""
) -> ReadSteps[None]:
    calls.open_call(name, own)
    char = yield from next_char(buffer)
    if char != "{":
        if not body.fence:
            raise Mismatch
        yield from read_marker(buffer, marker_set(*body.fence))
        char = yield from next_char(buffer)
        if char != "{":
            raise Mismatch
    yield from read_arguments_value(buffer, calls, body)
    calls.close_call()
    if body.fence:
        yield from skip_space(buffer)
        yield from read_marker(buffer, marker_set(*(marker.strip() for marker in body.fence)))
