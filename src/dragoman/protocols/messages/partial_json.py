"""JSON that ends too early: as much of it as is certain.

An answer that is cut off inside a call has a call with half its arguments. A client that hears the
stream reads what is whole of them, and an answer that is not streamed says the same: texts, keys
and words that are cut off are left out, and what is open is closed.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import msgspec

# a token of JSON that is whole: a text, a number, a word or a sign, with the space before it
_TOKEN = re.compile(
    r"\s*(?:(?P<text>\"(?:[^\"\\]|\\.)*\")|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>true|false|null)|(?P<sign>[][{},:]))",
    re.DOTALL,
)
Open: TypeAlias = "tuple[str, Open] | None"  # what is open, innermost first
_CLOSING = {"{": "}", "[": "]"}
_UNFINISHED = re.compile(r"[.eE+-]")  # what shows that a number goes on


def parse_partial_json(text: str) -> Any:
    """The value of a text; an empty object where nothing is certain."""
    for attempt in (str, _completed):
        try:
            return msgspec.json.decode(attempt(text))
        except (msgspec.DecodeError, RecursionError):
            continue
    return {}


def _completed(text: str) -> str:
    """The text up to its last whole value, with what is open closed."""
    inside: Open = None
    kept: tuple[int, Open] = (0, None)
    at, before = 0, ""
    while (token := _TOKEN.match(text, at)) is not None:
        at, sign = token.end(), token["sign"] or ""
        if token["number"] and _UNFINISHED.match(text, at):
            break
        if sign in _CLOSING:
            inside = (_CLOSING[sign], inside)
        elif inside is not None and sign == inside[0]:
            inside = inside[1]
        key = token["text"] and inside is not None and inside[0] == "}" and before != ":"
        if sign not in (",", ":") and not key:
            kept = (at, inside)
        before = sign
    end, inside = kept
    closing = []
    while inside is not None:
        closing.append(inside[0])
        inside = inside[1]
    return text[:end] + "".join(closing)
