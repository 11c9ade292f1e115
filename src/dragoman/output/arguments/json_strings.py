"""Strings, escapes and bare words as JSON."""

from __future__ import annotations

import json
import math
import re
from json.encoder import encode_basestring

from dragoman.output.text_buffer import ReadSteps, TextBuffer, UnexpectedEnd

CONSTANTS = {"true": "true", "false": "false", "null": "null"}
CONSTANTS |= {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[^uUx]", re.DOTALL)
_ESCAPE_LENGTHS = {"u": 5, "U": 9, "x": 3}
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
MAX_NUMBER = 1000  # characters; JSON parsers reject longer numbers
_PYTHON_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?")


def dump_json(value: object) -> str:
    """Encode a value as JSON; a lone surrogate, which UTF-8 cannot encode, stays escaped."""
    encoded = json.dumps(value, ensure_ascii=False)
    return encoded if LONE_SURROGATE.search(encoded) is None else json.dumps(value)


def quote(text: str) -> str:
    """Return text as a JSON string."""
    encoded = encode_basestring(text)
    return encoded if LONE_SURROGATE.search(encoded) is None else json.dumps(text)


def escape(text: str) -> str:
    """Escape text for the inside of a JSON string."""
    encoded = encode_basestring(text)
    return (encoded if LONE_SURROGATE.search(encoded) is None else json.dumps(text))[1:-1]


def word_to_json(word: str) -> str:
    """Return a bare word as JSON: a number, a constant, or else a string."""
    if word in CONSTANTS:
        return CONSTANTS[word]
    if len(word) <= MAX_NUMBER and JSON_NUMBER.fullmatch(word):
        return word
    return _number_to_json(word) or quote(word)


def _number_to_json(word: str) -> str | None:
    """Return a number that Python accepts and JSON does not, as JSON."""
    if len(word) > 32 or not word.isascii() or "_" in word:
        return None
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    if _PYTHON_NUMBER.fullmatch(word) and math.isfinite(number := float(word)):
        return json.dumps(int(number) if number.is_integer() and "." not in word else number)
    return None


def read_escape(buffer: TextBuffer) -> ReadSteps[str]:
    """Read an escape sequence, starting at its backslash, and return it as JSON."""
    while True:
        char = buffer.text[buffer.pos + 1 : buffer.pos + 2]
        length = _ESCAPE_LENGTHS.get(char, 1)
        if char and len(buffer.text) - buffer.pos > length:
            break
        if buffer.has_ended:
            buffer.pos = len(buffer.text)
            raise UnexpectedEnd
        yield
    match = _ESCAPE.match(buffer.text, buffer.pos + 1)
    if match is None:  # too few digits: not an escape
        buffer.pos += 1
        return "\\\\"
    buffer.pos = match.end()
    return _escape_to_json(match.group())


def _escape_to_json(sequence: str) -> str:
    """Return an escape of JSON or Python, given without its backslash, as JSON."""
    kind = sequence[0]
    if kind == "u":
        return "\\" + sequence
    if kind in "Ux":
        return escape(chr(min(int(sequence[1:], 16), 0x10FFFF)))
    if kind in '"\\/bfnrt':
        return "\\" + kind
    if kind == "'":
        return "'"
    if kind == "\n":
        return ""
    return "\\\\" + escape(kind)
