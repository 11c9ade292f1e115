"""Parse JSON that is cut off, as far as its values are certain.

An answer that is cut off inside a tool call has a call with incomplete arguments. A client that
reads the stream keeps the values that are complete, and a whole answer contains the same values:
strings, keys and literals that are cut off are dropped, and open lists and objects are closed.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

from dragoman.types import Json

# A complete token of JSON, with the whitespace before it.
_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<literal>true|false|null)|(?P<sign>[][{},:]))",
    re.DOTALL,
)
ClosingStack: TypeAlias = "tuple[str, ClosingStack] | None"  # closing brackets, innermost first
_CLOSING = {"{": "}", "[": "]"}
MAX_DEPTH = 500  # what a client can parse, too, whatever its version of Python
_CONTINUES_NUMBER = re.compile(r"[.eE+-]")


def parse_partial_json(text: str) -> Json:
    """Return the value of a text; an empty object where nothing is certain."""
    for attempt in (str, _complete):
        try:
            return msgspec.json.decode(attempt(text))
        except (msgspec.DecodeError, RecursionError):
            continue
    return {}


def _complete(text: str) -> str:
    """Return the text up to its last complete value, with all open brackets closed."""
    stack: ClosingStack = None
    complete: tuple[int, ClosingStack] = (0, None)
    position, before = 0, ""
    while (token := _TOKEN.match(text, position)) is not None:
        position, sign = token.end(), token["sign"] or ""
        if token["number"] and _CONTINUES_NUMBER.match(text, position):
            break
        if sign in _CLOSING:
            stack = (_CLOSING[sign], stack)
        elif stack is not None and sign == stack[0]:
            stack = stack[1]
        is_key = token["string"] and stack is not None and stack[0] == "}" and before != ":"
        if sign not in (",", ":") and not is_key:
            complete = (position, stack)
        before = sign
    end, stack = complete
    closing = []
    while stack is not None:
        closing.append(stack[0])
        stack = stack[1]
    return text[:end] + "".join(closing) if len(closing) <= MAX_DEPTH else ""
