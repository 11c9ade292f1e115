"""Words and characters of literals, as JSON writes them."""

from __future__ import annotations

import json
import math
import re
from json.encoder import encode_basestring

from dragoman.output.text_buffer import ReadSteps, TextBuffer, UnexpectedEnd

# what a string cannot pass on as it is, by the quote it stands in
STRING_BREAKS = {'"': re.compile(r'["\\\x00-\x1f]'), "'": re.compile(r"['\"\\\x00-\x1f]")}
CONSTANTS = {"true": "true", "false": "false", "null": "null"}
CONSTANTS |= {"True": "true", "False": "false", "None": "null"}
_ESCAPE = re.compile(r"u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[^uUx]", re.DOTALL)
_ESCAPE_LENGTHS = {"u": 5, "U": 9, "x": 3}
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")
MAX_NUMBER = 1000  # digits; what is longer no reader of JSON takes for a number
_LOOSE_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?")


def dump_json(value: object) -> str:
    """JSON that can be sent: half a character, which an escape may make, stays an escape."""
    made = json.dumps(value, ensure_ascii=False)
    return made if LONE_SURROGATE.search(made) is None else json.dumps(value)


def quote(text: str) -> str:
    """Text as a JSON string."""
    made = encode_basestring(text)
    return made if LONE_SURROGATE.search(made) is None else json.dumps(text)


def escape(text: str) -> str:
    """Text as it stands inside a JSON string."""
    return quote(text)[1:-1]


def word_to_json(word: str) -> str:
    """A bare word: a number or a constant if it is one, else a string."""
    if word in CONSTANTS:
        return CONSTANTS[word]
    if len(word) <= MAX_NUMBER and _NUMBER.fullmatch(word):
        return word
    return _number_to_json(word) or quote(word)


def _number_to_json(word: str) -> str | None:
    """A number that Python would read but JSON would not."""
    if len(word) > 32 or not word.isascii() or "_" in word:
        return None
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    if _LOOSE_NUMBER.fullmatch(word) and math.isfinite(number := float(word)):
        return json.dumps(int(number) if number.is_integer() and "." not in word else number)
    return None


def read_escape(buffer: TextBuffer) -> ReadSteps[str]:
    """An escape, from its backslash on, as JSON writes it."""
    while True:
        char = buffer.text[buffer.pos + 1 : buffer.pos + 2]
        need = _ESCAPE_LENGTHS.get(char, 1)
        if char and len(buffer.text) - buffer.pos > need:
            break
        if buffer.ended:
            buffer.pos = len(buffer.text)
            raise UnexpectedEnd
        yield
    found = _ESCAPE.match(buffer.text, buffer.pos + 1)
    if found is None:  # an escape of too few digits is no escape
        buffer.pos += 1
        return "\\\\"
    buffer.pos = found.end()
    return _escape_to_json(found.group())


def _escape_to_json(said: str) -> str:
    """An escape of JSON or Python, without its backslash, as JSON writes it."""
    kind = said[0]
    if kind == "u":
        return "\\" + said
    if kind in "Ux":
        return escape(chr(min(int(said[1:], 16), 0x10FFFF)))
    if kind in '"\\/bfnrt':
        return "\\" + kind
    if kind == "'":
        return "'"
    if kind == "\n":
        return ""
    return "\\\\" + escape(kind)
