"""Converts the text of an argument to a type that the tool's schema allows.

Formats that put arguments between tags write plain text; only the schema says that `3` is a number
and `02134` is not. Models imitate the templates they were trained with, and several templates
write Python (`True`, `{'a': None}`), so both spellings are read. Text that does not fit the schema
stays text: nothing is lost, and the caller of the tool can report the mismatch. Numbers keep their
spelling wherever JSON allows it.
"""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from dragoman.output.arguments.json_strings import JSON_NUMBER, MAX_NUMBER, dump_json, quote
from dragoman.output.arguments.schemas.parameter_types import STRING, Types
from dragoman.output.arguments.values.reader import ValueReader
from dragoman.output.text_buffer import Mismatch, TextBuffer, UnexpectedEnd
from dragoman.types import Json

MAX_WRAPPERS = 4  # strings and lists around the arguments of a call
TYPE_ORDER = ("null", "boolean", "integer", "number", "object", "array")
_JSON_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")


def cast(text: str, types: Types) -> str:
    """Return the text of an argument as JSON."""
    if types == STRING:
        return quote(text)
    stripped = text.strip()
    for type_name in TYPE_ORDER:
        if type_name not in types:
            continue
        value = _READERS[type_name](stripped)
        if value is not None and (
            "string" not in types or _is_unambiguous(value, stripped, type_name)
        ):
            return value
    return quote(text)


def _is_unambiguous(value: str, stripped: str, type_name: str) -> bool:
    """Whether a value is not a string even where the schema allows strings, too."""
    return bool(stripped) and (type_name not in ("integer", "number") or value == stripped)


def _read_null(text: str) -> str | None:
    return "null" if text in ("null", "None", "NULL", "nil", "") else None


def _read_boolean(text: str) -> str | None:
    lowered = text.lower()
    return lowered if lowered in ("true", "false") else None


def _read_integer(text: str) -> str | None:
    if len(text) > MAX_NUMBER:
        return None
    if _JSON_INTEGER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        return str(int(text))
    whole, point, rest = text.partition(".")
    if point and not rest.strip("0") and _INTEGER.fullmatch(whole):
        return str(int(whole))
    if JSON_NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return text if number.is_integer() else None
    return None


def _read_number(text: str) -> str | None:
    if len(text) > MAX_NUMBER:
        return None
    if JSON_NUMBER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        return str(int(text))
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return json.dumps(number)
    return None


def _read_object(text: str) -> str | None:
    return _read_container(text, dict) if text.startswith("{") else None


def _read_array(text: str) -> str | None:
    return _read_container(text, list) if text.startswith(("[", "(")) else None


def _read_container(text: str, container: type) -> str | None:
    parsed = _parse(text)
    return parsed[0] if parsed is not None and isinstance(parsed[1], container) else None


_READERS = {
    "null": _read_null,
    "boolean": _read_boolean,
    "integer": _read_integer,
    "number": _read_number,
    "object": _read_object,
    "array": _read_array,
}


def to_json(text: str) -> str | None:
    """Return a JSON value or Python literal as JSON, or None if the text is neither."""
    parsed = _parse(text)
    return None if parsed is None else parsed[0]


def load_value(text: str) -> Json:
    """Return the value of a JSON text or Python literal, or None."""
    parsed = _parse(text)
    return None if parsed is None else parsed[1]


def _parse(text: str) -> tuple[str, Json] | None:
    """Return a JSON value or Python literal as JSON, and the value."""
    stripped = text.strip()
    try:
        return stripped, _load_strict(stripped)
    except (ValueError, RecursionError):
        repaired = _repair(stripped)
    return None if repaired is None else (repaired, _load_strict(repaired))


def _load_strict(text: str) -> Json:
    return json.loads(text, parse_constant=_reject_constant)


def _reject_constant(_word: str) -> NoReturn:
    raise ValueError("not a JSON number")


def _repair(text: str) -> str | None:
    """Return JSON for a text that only resembles JSON, read like the arguments of a call."""
    if text[:1] not in ("{", "[", "(", '"', "'") and text not in ("True", "False", "None"):
        return None
    buffer, parts = TextBuffer(), list[str]()
    buffer.push(text)
    buffer.finish()
    try:
        for _ in ValueReader(buffer, parts.append).read():
            pass
        if buffer.has_more:
            return None
        repaired = "".join(parts)
        return repaired if dump_json(_load_strict(repaired)) else None
    except (UnexpectedEnd, Mismatch, ValueError, RecursionError):
        return None


def load_arguments(text: str) -> str:
    """Return the object in a JSON text: itself, in a string, as a list's only element, or none."""
    value = load_value(text)
    for _ in range(MAX_WRAPPERS):
        if isinstance(value, str):
            text, value = value, load_value(value)
        elif isinstance(value, list) and len(value) == 1:
            text, value = dump_json(value[0]), value[0]
    if value == [] or (value is None and text.strip() in ("null", "")):
        return "{}"
    if not isinstance(value, dict):
        raise Mismatch
    return to_json(text) or "{}"
