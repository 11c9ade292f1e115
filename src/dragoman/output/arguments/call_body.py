"""Readers of calls, one for each way to write a name and its arguments.

Each is a generator that starts where the body starts, reports calls to `CallRecorder`, and
returns after the last character of the body. It raises `Mismatch` if the text is not a call.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial

from dragoman.output.arguments.cast import cast, load_value
from dragoman.output.arguments.damage import (
    COLONS,
    COMMAS,
    ODD_SPACES,
    skip_odd_space,
    skip_stray_quote,
)
from dragoman.output.arguments.end_markers import is_at_end, make_end_markers
from dragoman.output.arguments.free_text import read_free_text
from dragoman.output.arguments.held_values import collect_arguments, collect_value
from dragoman.output.arguments.json_strings import LONE_SURROGATE
from dragoman.output.arguments.schemas.argument_types import ArgumentTypes
from dragoman.output.arguments.stray_markup import FENCES, skip_end_of_turn, skip_fence
from dragoman.output.arguments.values.reader import ValueReader
from dragoman.output.arguments.values.words import read_bare_key
from dragoman.output.calls import CallRecorder
from dragoman.output.spec import JsonObjects, NamedObject
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
    peek_char,
    read_marker,
    read_until,
    skip_space,
)

WRAPPER_STARTS = ('"', "'", "[")  # of strings and lists that may contain the arguments
NULL_STARTS = ("n", "N")


@lru_cache(maxsize=512)
def get_markers(*markers: str) -> MarkerSet:
    """Return a cached `MarkerSet`."""
    return MarkerSet(markers)


def next_char(buffer: TextBuffer) -> ReadSteps[str]:
    """Return the next character that is not white space; raise `UnexpectedEnd` if there is none."""
    yield from skip_space(buffer)
    char = yield from peek_char(buffer)
    if not char:
        raise UnexpectedEnd
    return char


def read_arguments_value(
    buffer: TextBuffer,
    calls: CallRecorder,
    body: NamedObject | None = None,
    call_keys: tuple[str, ...] = (),
) -> ReadSteps[None]:
    """Read arguments that are one value, and emit them as they arrive.

    `call_keys`: the keys of the object that contains them.
    """
    quotes = get_markers(*body.string_markers) if body is not None and body.string_markers else None
    unquoted = body is not None and body.unquoted_values
    types = ArgumentTypes(
        list_parameters=partial(calls.tools.get_parameter_types, calls.name),
        find=calls.get_parameter_types,
        cast=cast,
        casts_words=body is not None and body.types_from_schema,
        casts_strings=body is not None and body.casts_strings,
        tools=calls.tools.names,
        call_keys=call_keys,
    )
    value = ValueReader(buffer, calls.write_arguments, quotes, unquoted, types)
    value.must_be_object = value.colon_optional = True
    value.ends = calls.ends
    if body is not None and body.fence:
        fence = get_markers(*(marker.strip() for marker in body.fence))
        value.ends = make_end_markers(calls.ends.join(fence), calls.ends.call_opens)
    calls.get_missing_end, calls.get_held_arguments = value.get_missing_end, value.get_held_text
    calls.hold_arguments(lambda: value.stack[-1:] == ['"'])
    yield from calls.run_apart(value.read())


# bodies of type `JsonObjects`


def read_objects(buffer: TextBuffer, body: JsonObjects, calls: CallRecorder) -> ReadSteps[None]:
    """Read one object, or a list of objects."""
    char = yield from next_char(buffer)
    if char == "{" or (char == '"' and calls.is_certain):  # the brace may be missing
        yield from read_call_object(buffer, body, calls)
        return
    if char != "[":
        raise Mismatch
    buffer.pos += 1
    yield from read_object_list(buffer, body, calls)


def read_object_list(buffer: TextBuffer, body: JsonObjects, calls: CallRecorder) -> ReadSteps[None]:
    """Read the objects of a list whose bracket was read. Lists inside it are part of it."""
    depth, ends = 0, calls.ends
    calls.ends = calls.make_list_ends()
    try:
        while True:
            char = yield from next_char(buffer)
            if char == "[" and calls.is_certain and not (yield from is_at_end(buffer, calls.ends)):
                buffer.pos += 1
                depth += 1
            elif char == "]" and depth:
                buffer.pos += 1
                depth -= 1
                calls.commit()
            elif char == "]":
                buffer.pos += 1
                if not calls.is_certain and not calls.has_rejected_call:
                    raise Mismatch
                return
            elif char == "{":
                calls.start_next_call()
                try:
                    yield from read_call_object(buffer, body, calls)
                    calls.confirm_call()
                except Mismatch:
                    yield from skip_damaged_object(buffer, calls)
            elif char == "," and (calls.has_call or calls.has_rejected_call):
                buffer.pos += 1
            elif not (calls.is_certain and (yield from skip_end_of_turn(buffer, calls))):
                yield from skip_damaged_object(buffer, calls)
    finally:
        calls.ends = ends


def skip_damaged_object(buffer: TextBuffer, calls: CallRecorder) -> ReadSteps[None]:
    """Skip the rest of an object that is not a proper call, up to the next call in the list.

    Raises `Mismatch` if there is none before the list ends.
    """
    if not calls.is_certain:
        raise Mismatch
    calls.complete_damaged_call()
    char = ""
    try:
        while True:
            char = yield from next_char(buffer)
            if char in calls.ends.string_chars and (yield from is_at_end(buffer, calls.ends)):
                break
            buffer.pos += 1
    finally:
        calls.drop_brackets()
    if char != "{":
        raise Mismatch
    calls.reject_text()


class _CallFields:
    """The members of a call's object that were read so far."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.name_key = ""  # the key of the name; of several names with this key, the last counts
        self.id = ""
        self.early_arguments: str | None = None  # arguments before the name
        self.is_emitted = False
        self.is_nested = False  # whether the call is inside another object
        self.has_other_members = False  # whether the object has members that calls do not have

    @property
    def is_empty(self) -> bool:
        """Whether no member was read."""
        members = (self.name, self.id, self.early_arguments, self.is_emitted)
        return not (any(members) or self.is_nested or self.has_other_members)

    def is_renamed_by(self, key: str) -> bool:
        """Whether a member with this key replaces the name: the call is not emitted yet."""
        return key == self.name_key and not self.is_emitted


def read_call_object(buffer: TextBuffer, body: JsonObjects, calls: CallRecorder) -> ReadSteps[None]:
    fields = _CallFields()
    try:
        yield from read_members(buffer, body, calls, fields)
    except Mismatch:
        if calls.is_unconfirmed and not (yield from ends_object(buffer, calls)):
            calls.drop_call()
        raise
    if fields.name is None:
        raise Mismatch
    if not fields.is_emitted:
        if fields.early_arguments is None and (body.requires_arguments or fields.has_other_members):
            raise Mismatch
        calls.open_call(fields.name, fields.id)
        calls.hold_arguments()
        calls.write_arguments(
            fields.early_arguments if fields.early_arguments is not None else "{}"
        )
    calls.close_call()


def ends_object(buffer: TextBuffer, calls: CallRecorder) -> ReadSteps[bool]:
    """Whether an object whose brace is missing ends here."""
    char = yield from peek_char(buffer)
    return char == "]" or (char != "" and (yield from is_at_end(buffer, calls.ends)))


def read_members(
    buffer: TextBuffer, body: JsonObjects, calls: CallRecorder, fields: _CallFields
) -> ReadSteps[None]:
    """Read the members of an object, from its opening to its closing brace."""
    buffer.pos += buffer.text[buffer.pos] == "{"
    while True:
        char = yield from next_char(buffer)
        if char == "}":
            buffer.pos += 1
            return
        if char in COMMAS:
            buffer.pos += 1
            continue
        if char == "{" and fields.is_empty:
            buffer.pos += 1  # the brace is doubled
            continue
        if (
            char in ODD_SPACES
            and not (yield from is_at_end(buffer, calls.ends))
            and (yield from skip_odd_space(buffer, "}"))
        ):
            continue
        key = yield from read_member_key(buffer, body, calls, char)
        yield from skip_member_colon(buffer, is_certain=calls.is_certain)
        char = yield from next_char(buffer)
        if char not in ",}" or not calls.is_certain:  # else a key without a value is left out
            yield from read_member(buffer, body, calls, fields, key)


def skip_member_colon(buffer: TextBuffer, *, is_certain: bool) -> ReadSteps[None]:
    """Skip the colon after a key; in a call that is certain, a damaged one, or none."""
    colon = yield from next_char(buffer)
    if colon not in (COLONS if is_certain else ":"):
        if not is_certain or colon in ",}":
            raise Mismatch
        return
    buffer.pos += 1
    char = yield from next_char(buffer)
    if char == colon or colon + char == "=>":
        buffer.pos += 1  # it is doubled, or an arrow


def read_member_key(
    buffer: TextBuffer, body: JsonObjects, calls: CallRecorder, char: str
) -> ReadSteps[str]:
    """Read the key of a member; without quotes, only one that calls have, after a marker."""
    if char in ('"', "'"):
        key = load_value((yield from collect_value(buffer, calls)))
        if isinstance(key, str):
            return key
    elif calls.is_certain:
        word = yield from read_bare_key(buffer, calls.ends)
        if word in (calls.tools.names if body.keyed else (*body.name, *body.arguments, *body.id)):
            return word
    raise Mismatch


def read_member(
    buffer: TextBuffer, body: JsonObjects, calls: CallRecorder, fields: _CallFields, key: str
) -> ReadSteps[None]:
    char = yield from peek_char(buffer)
    if body.keyed and fields.name is None:
        fields.name = key
        yield from read_arguments(buffer, body, calls, fields)
    elif key in body.name and char == "{" and fields.name is None and not fields.is_nested:
        fields.is_nested = True
        yield from read_members(buffer, body, calls, fields)  # {"function": {"name": ..., ...}}
    elif key in body.name and (fields.name is None or fields.is_renamed_by(key)):
        fields.name = yield from read_name(buffer, calls, is_quoted=char in ("'", '"'))
        fields.name_key = key
    elif key in body.arguments and not fields.is_emitted and fields.early_arguments is None:
        yield from read_arguments(buffer, body, calls, fields)
    else:
        value = yield from collect_value(buffer, calls)
        if key in body.id:
            call_id = load_value(value)
            fields.id = (
                call_id if isinstance(call_id, str) and not LONE_SURROGATE.search(call_id) else ""
            )
        elif key != "type":
            fields.has_other_members = True


def read_name(buffer: TextBuffer, calls: CallRecorder, *, is_quoted: bool) -> ReadSteps[str]:
    """Read the name of a call; without quotes, only a declared one after a marker."""
    if not is_quoted and not calls.is_certain:
        raise Mismatch
    value = load_value((yield from collect_value(buffer, calls)))
    if not isinstance(value, str) or LONE_SURROGATE.search(value):
        raise Mismatch
    name = value.strip().removesuffix(",")  # which is part of it if its quote is missing
    if not name or not (is_quoted or name in calls.tools.names):
        raise Mismatch
    return name


def read_arguments(
    buffer: TextBuffer, body: JsonObjects, calls: CallRecorder, fields: _CallFields
) -> ReadSteps[None]:
    """Read arguments given as an object, or as another value that contains one."""
    is_fenced = buffer.text[buffer.pos] == "`" and (yield from skip_fence(buffer))
    quote = yield from skip_stray_quote(buffer)
    if (yield from peek_char(buffer)) == "{" and fields.name is not None:
        calls.open_call(fields.name, fields.id)
        fields.is_emitted = True
        call_keys = () if body.keyed else (*body.name, *body.arguments, *body.id, "type")
        yield from read_arguments_value(buffer, calls, call_keys=call_keys)
        if quote:
            yield from read_marker(buffer, get_markers(quote))
    else:
        fields.early_arguments = arguments = yield from collect_arguments(buffer, calls)
        if fields.name is not None:
            calls.open_call(fields.name, fields.id)
            fields.is_emitted = True
            calls.hold_arguments()
            calls.write_arguments(arguments)
    if is_fenced:
        yield from skip_fence(buffer)


# bodies of type `NamedObject`


def read_named_call(
    buffer: TextBuffer, body: NamedObject, calls: CallRecorder, after: tuple[str, ...]
) -> ReadSteps[None]:
    """Read a name, the marker that ends it, and an object; without one, `after` must follow."""
    ends = calls.ends.join(get_markers(*body.name_ends, "{"))
    text, marker, end = yield from read_until(buffer, ends)
    if marker in body.name_ends:
        buffer.pos = end
    elif marker != "{" and marker not in after:
        raise Mismatch
    match = re.fullmatch(body.name_pattern, text.strip() or calls.preceding_name)
    if match is None:
        raise Mismatch
    groups = match.groupdict()
    if body.free_text:
        closes = get_markers(*(line + close for line in ("\n", "") for close in after))
        if (yield from read_free_text(buffer, calls, groups["name"], closes)):
            return
    if marker != "{" and after:
        yield from skip_space(buffer)
        if (yield from is_at_marker(buffer, get_markers(*after))):
            calls.open_call(groups["name"], groups.get("id") or "")
            calls.write_arguments("{}")
            calls.close_call()
            return
    yield from read_named_arguments(buffer, body, calls, groups["name"], groups.get("id") or "")


def read_named_arguments(
    buffer: TextBuffer, body: NamedObject, calls: CallRecorder, name: str, call_id: str = ""
) -> ReadSteps[None]:
    calls.open_call(name, call_id)
    yield from skip_space(buffer)
    is_fenced = (yield from read_marker(buffer, get_markers(*body.fence, *FENCES))) >= 0
    quote = yield from skip_stray_quote(buffer)
    char = yield from next_char(buffer)
    closing = get_markers(*(marker.strip() for marker in (*body.fence, *FENCES)))
    if char == "{":
        try:
            yield from read_arguments_value(buffer, calls, body)
        except Mismatch:
            if not (calls.is_emitting and (yield from is_at_marker(buffer, closing))):
                raise
            calls.complete_call()  # the fence comes before the end of the object
        if quote:
            yield from read_marker(buffer, get_markers(quote))
    elif char in WRAPPER_STARTS or (char in NULL_STARTS and calls.is_certain):
        calls.hold_arguments()
        calls.write_arguments((yield from collect_arguments(buffer, calls, closing)))
    else:
        raise Mismatch
    calls.close_call()
    if is_fenced or body.fence:
        yield from skip_space(buffer)
        while (yield from read_marker(buffer, closing)) >= 0:
            calls.commit()
            yield from skip_space(buffer)
