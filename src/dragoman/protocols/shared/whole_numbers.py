"""Decodes JSON into types; an integer may also be a whole float.

Clients in languages with one type of number send `5.0` for 5. A body is decoded as usual. If that
fails because a float is where an integer must be, the whole floats there become integers, in all
entries of the lists and objects on the way, and it is decoded again. All other bytes stay as the
client sent them, so schemas and arguments of tools keep theirs.

msgspec inspects a Struct when it decodes one for the first time, and crashes if two threads do that
at once. So the decoder of each type is made once, by one thread at a time.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import msgspec
from msgspec import Raw

MAX_EXACT = 2**53  # floats above this are not exact
MAX_ATTEMPTS = 32  # each converts one field of a type
_MISMATCH = re.compile(r"^Expected `[^`]*\bint\b[^`]*`, got `float`(?: - at `\$(?P<path>[^`]*)`)?$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|\[\.\.\.\]")


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_making_decoders = threading.Lock()


def get_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making_decoders:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


def decode_json(body: bytes, kind: Any) -> Any:
    """Decode JSON as a type, in which an integer may also be written as a whole float."""
    for _ in range(MAX_ATTEMPTS):
        try:
            return get_decoder(kind).decode(body)
        except msgspec.ValidationError as error:
            mismatch = _MISMATCH.match(str(error))
            if mismatch is None:
                raise
            steps = list(_STEP.finditer(mismatch["path"] or ""))
            converted = bytes(_replace_whole_floats(Raw(body), steps))
            if converted == body:
                raise
            body = converted
    return get_decoder(kind).decode(body)


def convert_json(value: Any, kind: Any) -> Any:
    """Convert decoded JSON to a type, in which an integer may also be a whole float."""
    get_decoder(kind)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if _MISMATCH.match(str(error)) is None:
            raise
    return decode_json(msgspec.json.encode(value), kind)


def _replace_whole_floats(value: Raw, steps: list[re.Match[str]]) -> Raw:
    """Replace whole floats by integers at a path; an index in it stands for all entries."""
    if not steps:
        return _to_integer(value)
    step, rest = steps[0], steps[1:]
    try:
        if step["index"] is not None:
            entries = msgspec.json.decode(value, type=list[Raw])
            return _encode([_replace_whole_floats(entry, rest) for entry in entries])
        fields = msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.ValidationError:  # one entry of a list may be of another type than the others
        return value
    names = fields if step["name"] is None else fields.keys() & {step["name"]}
    return _encode(fields | {name: _replace_whole_floats(fields[name], rest) for name in names})


def _to_integer(value: Raw) -> Raw:
    try:
        number = msgspec.json.decode(value, type=float)
    except msgspec.DecodeError:
        return value
    is_exact = number.is_integer() and abs(number) <= MAX_EXACT
    return _encode(int(number)) if is_exact else value


def _encode(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
