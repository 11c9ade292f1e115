"""From the text of an argument to its value, as the tool's schema wants it.

Formats that write arguments between tags write text; only the schema says that `3` is a number and
`02134` is not. Models imitate the template that taught them, and several templates write Python
(`True`, `{'a': None}`), so both spellings are read. Text that is not what the schema says stays
text: nothing is lost, and whoever runs the tool can say what is wrong with it. Numbers stay as they
were written wherever JSON can write them so.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from dragoman.output.arguments.json_strings import dump_json, quote
from dragoman.output.arguments.literal import ValueReader
from dragoman.output.arguments.parameter_types import STRING, Types
from dragoman.output.text_buffer import Mismatch, TextBuffer, UnexpectedEnd

TYPE_ORDER = ("null", "boolean", "integer", "number", "object", "array")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
_JSON_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
MAX_DIGITS = 1000  # digits; what is longer no reader of JSON takes for a number


def cast(text: str, types: Types) -> str:
    """The text of an argument as JSON."""
    if types == STRING:
        return quote(text)
    said = text.strip()
    for kind in TYPE_ORDER:
        if kind not in types:
            continue
        found = _READERS[kind](said)
        if found is not None and ("string" not in types or _is_unambiguous(found, said, kind)):
            return found
    return quote(text)


def _is_unambiguous(found: str, said: str, kind: str) -> bool:
    """Where text is allowed too, only what could be nothing else is no text."""
    return bool(said) and (kind not in ("integer", "number") or found == said)


def _read_null(text: str) -> str | None:
    return "null" if text in ("null", "None", "NULL", "nil", "") else None


def _read_boolean(text: str) -> str | None:
    said = text.lower()
    return said if said in ("true", "false") else None


def _read_integer(text: str) -> str | None:
    if len(text) > MAX_DIGITS:
        return None
    if _JSON_INTEGER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        return str(int(text))
    whole, point, rest = text.partition(".")
    if point and not rest.strip("0") and _INTEGER.fullmatch(whole):
        return str(int(whole))
    if _JSON_NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return text if number.is_integer() else None
    return None


def _read_number(text: str) -> str | None:
    if len(text) > MAX_DIGITS:
        return None
    if _JSON_NUMBER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        return str(int(text))
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return json.dumps(number)
    return None


def _read_object(text: str) -> str | None:
    return to_json(text) if text.startswith("{") and isinstance(load_value(text), dict) else None


def _read_array(text: str) -> str | None:
    return to_json(text) if text[:1] in ("[", "(") and isinstance(load_value(text), list) else None


_READERS = {
    "null": _read_null,
    "boolean": _read_boolean,
    "integer": _read_integer,
    "number": _read_number,
    "object": _read_object,
    "array": _read_array,
}


def to_json(text: str) -> str | None:
    """A value of JSON or of Python's literals as JSON, or None if it is neither."""
    said = text.strip()
    try:
        _load_strict(said)
    except (ValueError, RecursionError):
        return _repair(said)
    return said


def load_value(text: str) -> Any:
    """A value of JSON or of Python's literals, or None."""
    said = to_json(text)
    return None if said is None else _load_strict(said)


def _load_strict(text: str) -> Any:
    return json.loads(text, parse_constant=_reject_constant)


def _reject_constant(_word: str) -> NoReturn:
    raise ValueError("no number")


def _repair(text: str) -> str | None:
    """The same for what only looks like it: read as the arguments of a call are."""
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
        made = "".join(parts)
        return made if dump_json(_load_strict(made)) else None
    except (UnexpectedEnd, Mismatch, ValueError, RecursionError):
        return None
