r"""Patterns that are searched for in a text, as regular expressions that match all of it.

The engine knows no anchors, so the options of a pattern are taken one by one: what stands before
and after one is anything, but where it has an anchor. Anchors in a bracket at an end of an option
are taken out of it. `\d` and `\w` are ASCII in a schema, while the engine's go by Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

Classes: TypeAlias = Mapping[str, tuple[str, str]]  # outside of brackets and inside

MOST = 64  # options that come of taking brackets apart
DEEPEST = 64
SCHEMAS: Classes = {
    "d": ("[0-9]", "0-9"),
    "D": ("[^0-9]", r"\x00-\x2f\x3a-\x{10ffff}"),
    "w": ("[0-9A-Za-z_]", "0-9A-Za-z_"),
    "W": ("[^0-9A-Za-z_]", r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x{10ffff}"),
}
_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
UNICODE: Classes = {
    "d": (r"\p{Nd}", r"\p{Nd}"),
    "D": (r"\P{Nd}", r"\P{Nd}"),
    "w": (f"[{_WORD}]", _WORD),
    "W": (f"[^{_WORD}]", f"[^{_WORD}]"),
}
_ESCAPE = r"\\(?s:.)"
_CLASS = rf"\[\^?\]?(?:{_ESCAPE}|[^\]\\])*\]"
_TOKEN = re.compile(rf"{_ESCAPE}|{_CLASS}|(?s:.)")
_IN_CLASS = re.compile(r"\\([dDwW])(-(?!\]))?|\\(?s:.)")
_COUNT = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?")
_OPENED = re.compile(r"\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z\-]*):))?(?!\?)")
_FLAGS = re.compile(r"\(\?(?P<flags>[a-zA-Z\-]+)\)")
_STARTS, _ENDS = ("^", r"\A"), ("$", r"\z")


class Unsearchable(Exception):
    """A pattern with anchors in places that they cannot be taken from."""


class _Way(NamedTuple):
    """An option, and whether a text begins and ends with it."""

    starts: bool
    said: str
    ends: bool


def searched(said: str, *, whole: bool = False) -> str:
    """A pattern that is searched for, as one that matches the whole text; `whole` if it does."""
    try:
        ways = _ways(said)
    except Unsearchable:
        ways = [_Way(False, said, False)]
    options = []
    for way in ways:
        front = "" if whole or way.starts else r"(?s:.*)"
        back = "" if whole or way.ends else r"(?s:.*)"
        options.append(f"{front}(?:{way.said}){back}")
    found = "|".join(options)
    slashed = re.sub(r"(?s)(\\.)|/", lambda one: one[1] or r"\/", found)
    return (slashed if whole else respelt(slashed, SCHEMAS)).replace("\n", r"\n")


@lru_cache(maxsize=512)
def searchable(said: str) -> bool:
    """Whether the engine can read what comes of a pattern."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark(f"start: /{searched(said)}/")
    return not LLMatcher.validate_grammar(grammar)


def respelt(said: str, classes: Classes) -> str:
    r"""A pattern with other words for `\d` and its like."""
    return _TOKEN.sub(lambda found: _respelt(found[0], classes), said)


def _respelt(token: str, classes: Classes) -> str:
    if token[0] == "[" and token[1:]:
        # a hyphen after it was none of a range
        return _IN_CLASS.sub(
            lambda found: (
                classes[found[1]][1] + (r"\-" if found[2] else "") if found[1] else found[0]
            ),
            token,
        )
    return classes[token[1]][0] if token[0] == "\\" and token[1] in classes else token


def _ways(said: str, depth: int = 0) -> list[_Way]:
    """The options of a pattern or of what stands in a bracket."""
    if depth > DEEPEST:
        raise Unsearchable
    flags = _FLAGS.match(said)
    options = _options(_parts(said[flags.end() :] if flags else said))
    if len(options) > 1 and any(_FLAGS.match(part) for option in options for part in option):
        raise Unsearchable  # they would hold for the options that follow, too
    found = [way for option in options for way in _taken_apart(option, depth)]
    return [_flagged(way, flags["flags"]) for way in found] if flags else found


def _flagged(way: _Way, flags: str | None) -> _Way:
    if not flags:
        return way
    if not set(flags) <= set("isuU-"):
        raise Unsearchable
    return way._replace(said=f"(?{flags}:{way.said})")


def _parts(said: str) -> list[str]:
    """What stands one after the other: a letter, a class or a bracket, with its count; or a bar."""
    found, at = [], 0
    while at < len(said):
        start, at = at, _closed(said, at)
        count = _COUNT.match(said, at)
        at = at if count is None or said[start] == "|" else count.end()
        found.append(said[start:at])
    return found


def _closed(said: str, at: int) -> int:
    """Where that ends which begins somewhere."""
    depth = 0
    for token in _TOKEN.finditer(said, at):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth <= 0:
            return token.end()
    return len(said)


def _options(parts: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for part in parts:
        if part == "|":
            found.append([])
        else:
            found[-1].append(part)
    return found


def _taken_apart(parts: list[str], depth: int) -> list[_Way]:
    """An option without its anchors: several where they stood in a bracket."""
    first, last = 0, len(parts)
    while first < last and parts[first] in _STARTS:
        first += 1
    while first < last and parts[last - 1] in _ENDS:
        last -= 1
    starts, ends, inner = first > 0, last < len(parts), parts[first:last]
    held = [at for at, part in enumerate(inner) if _anchored(part)]
    if not held:
        return [_Way(starts, "".join(inner), ends)]
    if not set(held) <= {0, len(inner) - 1}:
        raise Unsearchable
    at = held[0]
    before, after = "".join(inner[:at]), inner[at + 1 :]
    found = []
    for way in _in_bracket(inner[at], depth):
        if (way.starts and before) or (way.ends and after):
            raise Unsearchable
        for rest in _taken_apart(after, depth):
            text = f"{before}(?:{way.said}){rest.said}"
            found.append(_Way(starts or way.starts, text, ends or way.ends or rest.ends))
        if len(found) > MOST:
            raise Unsearchable
    return found


def _anchored(part: str) -> bool:
    return any(token in (*_STARTS, *_ENDS) for token in _TOKEN.findall(part))


def _in_bracket(part: str, depth: int) -> list[_Way]:
    opened = _OPENED.match(part)
    if opened is None or not part.endswith(")"):
        raise Unsearchable
    ways = _ways(part[opened.end() : -1], depth + 1)
    return [_flagged(way, opened["flags"]) for way in ways]
