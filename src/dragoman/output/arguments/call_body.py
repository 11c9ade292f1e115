"""Readers of calls, one for each way to write a name and its arguments.

Each is a generator that begins where the body begins, tells `Calls` what it finds, and returns
after the last character of the body. What cannot be a call is `Refused`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from dragoman.output.arguments.cast import cast, loads, read
from dragoman.output.arguments.json_strings import HALF
from dragoman.output.arguments.literal import Value
from dragoman.output.calls import Calls
from dragoman.output.spec import NamedObject, JsonObjects
from dragoman.output.text_buffer import (
    UnexpectedEnd,
    MarkerSet,
    ReadSteps,
    Mismatch,
    TextBuffer,
    read_marker,
    peek_char,
    skip_space,
    read_until,
)


@lru_cache(maxsize=512)
def marks(*which: str) -> MarkerSet:
    return MarkerSet(which)


def letter_after_space(src: TextBuffer) -> ReadSteps[str]:
    """The next letter that is no white space; the text may be cut before one comes."""
    yield from skip_space(src)
    letter = yield from peek_char(src)
    if not letter:
        raise UnexpectedEnd
    return letter


def read_value(src: TextBuffer, calls: Calls, body: NamedObject | None = None) -> ReadSteps[None]:
    """Arguments that are one value, handed out as they come."""
    quotes = marks(*body.string_markers) if body is not None and body.string_markers else None
    loose = body is not None and body.unquoted_values
    types = calls.tools.types(calls.name) if body is not None and body.types_from_schema else None
    value = Value(src, calls.args, quotes, loose, types)
    value.object = True
    value.forgiving = body is not None
    value.ends = calls.ends
    value.cast = cast
    value.casts = body is not None and body.casts_strings
    calls.closing, calls.held = value.closing, value.held
    yield from value.read()


def collect(src: TextBuffer) -> ReadSteps[str]:
    """A value that nothing is done with yet."""
    parts: list[str] = []
    yield from Value(src, parts.append).read()
    return "".join(parts)


# Objects


def objects(src: TextBuffer, body: JsonObjects, calls: Calls) -> ReadSteps[None]:
    """One object, or a list of them."""
    letter = yield from letter_after_space(src)
    if letter == "{":
        yield from one_object(src, body, calls)
        return
    if letter != "[":
        raise Mismatch
    src.pos += 1
    yield from listed(src, body, calls)


def listed(src: TextBuffer, body: JsonObjects, calls: Calls) -> ReadSteps[None]:
    """The objects of a list whose bracket was read."""
    while True:
        letter = yield from letter_after_space(src)
        if letter == "]":
            src.pos += 1
            if not calls.found and not calls.spoiled:
                raise Mismatch
            return
        if letter == "{":
            calls.renew()
            yield from one_object(src, body, calls)
        elif letter == "," and (calls.found or calls.spoiled):
            src.pos += 1
        else:
            raise Mismatch


class _Found:
    """What an object said so far."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.id = ""
        self.early: str | None = None  # arguments that came before the name
        self.told = False
        self.inner = False  # whether it stands in another one
        self.other = False  # whether there are members that are no part of a call


def one_object(src: TextBuffer, body: JsonObjects, calls: Calls) -> ReadSteps[None]:
    said = _Found()
    yield from members(src, body, calls, said)
    if said.name is None:
        raise Mismatch
    if not said.told:
        if said.early is None and (body.requires_arguments or said.other):
            raise Mismatch
        calls.open(said.name, said.id)
        calls.args(said.early if said.early is not None else "{}")
    calls.close()


def members(src: TextBuffer, body: JsonObjects, calls: Calls, said: _Found) -> ReadSteps[None]:
    """The members of an object, from its opening brace to its closing one."""
    src.pos += 1
    while True:
        letter = yield from letter_after_space(src)
        if letter == "}":
            src.pos += 1
            return
        if letter == ",":
            src.pos += 1
            continue
        if letter not in ('"', "'"):
            raise Mismatch
        key = loads((yield from collect(src)))
        letter = yield from letter_after_space(src)
        if letter != ":" or not isinstance(key, str):
            raise Mismatch
        src.pos += 1
        yield from skip_space(src)
        yield from member(src, body, calls, said, key)


def member(src: TextBuffer, body: JsonObjects, calls: Calls, said: _Found, key: str) -> ReadSteps[None]:
    letter = yield from peek_char(src)
    if body.keyed and said.name is None:
        said.name = key
        yield from arguments(src, calls, said, letter)
    elif key in body.name and letter == "{" and said.name is None and not said.inner:
        said.inner = True
        yield from members(src, body, calls, said)  # {"function": {"name": ..., ...}}
    elif key in body.name and said.name is None:
        if letter not in ("'", '"'):
            raise Mismatch
        name = loads((yield from collect(src)))
        if not isinstance(name, str) or not name or HALF.search(name):
            raise Mismatch
        said.name = name
    elif key in body.arguments and not said.told and said.early is None:
        yield from arguments(src, calls, said, letter)
    else:
        value = yield from collect(src)
        if key in body.id:
            found = loads(value)
            said.id = found if isinstance(found, str) and not HALF.search(found) else ""
        elif key != "type":
            said.other = True


def arguments(src: TextBuffer, calls: Calls, said: _Found, letter: str) -> ReadSteps[None]:
    """Arguments as an object; as text that holds one; or none at all."""
    if letter == "{" and said.name is not None:
        calls.open(said.name, said.id)
        said.told = True
        yield from read_value(src, calls)
        return
    text = yield from collect(src)
    value = loads(text)
    if isinstance(value, str) and letter in ("'", '"'):
        text = value
        value = loads(value) if value.strip() else None
    if value is None and text.strip() in ("null", ""):
        text, value = "{}", {}
    if not isinstance(value, dict):
        raise Mismatch
    said.early = made = read(text) or "{}"
    if said.name is not None:
        calls.open(said.name, said.id)
        said.told = True
        calls.args(made)


# Named


def named(src: TextBuffer, body: NamedObject, calls: Calls) -> ReadSteps[None]:
    """A name, what ends it, and an object."""
    text, mark, end = yield from read_until(src, marks(*body.name_ends, "{"))
    if mark != "{":
        src.pos = end
    found = re.fullmatch(body.name_pattern, text.strip())
    if found is None:
        raise Mismatch
    groups = found.groupdict()
    yield from named_arguments(src, body, calls, groups["name"], groups.get("id") or "")


def named_arguments(
    src: TextBuffer, body: NamedObject, calls: Calls, name: str, own: str = ""
) -> ReadSteps[None]:
    calls.open(name, own)
    letter = yield from letter_after_space(src)
    if letter != "{":
        if not body.fence:
            raise Mismatch
        yield from read_marker(src, marks(*body.fence))
        letter = yield from letter_after_space(src)
        if letter != "{":
            raise Mismatch
    yield from read_value(src, calls, body)
    calls.close()
    if body.fence:
        yield from skip_space(src)
        yield from read_marker(src, marks(*(mark.strip() for mark in body.fence)))
