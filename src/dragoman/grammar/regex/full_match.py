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

ClassDefinitions: TypeAlias = Mapping[str, tuple[str, str]]  # outside of brackets and inside

MAX_ALTERNATIVES = 64  # options that come of taking brackets apart
MAX_DEPTH = 64
ASCII_CLASSES: ClassDefinitions = {
    "d": ("[0-9]", "0-9"),
    "D": ("[^0-9]", r"\x00-\x2f\x3a-\x{10ffff}"),
    "w": ("[0-9A-Za-z_]", "0-9A-Za-z_"),
    "W": ("[^0-9A-Za-z_]", r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\x{10ffff}"),
}
_UNICODE_WORD = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}"
UNICODE_CLASSES: ClassDefinitions = {
    "d": (r"\p{Nd}", r"\p{Nd}"),
    "D": (r"\P{Nd}", r"\P{Nd}"),
    "w": (f"[{_UNICODE_WORD}]", _UNICODE_WORD),
    "W": (f"[^{_UNICODE_WORD}]", f"[^{_UNICODE_WORD}]"),
}
_ESCAPE = r"\\(?s:.)"
_CLASS = rf"\[\^?\]?(?:{_ESCAPE}|[^\]\\])*\]"
_TOKEN = re.compile(rf"{_ESCAPE}|{_CLASS}|(?s:.)")
_CLASS_MEMBER = re.compile(r"\\([dDwW])(-(?!\]))?|\\(?s:.)")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?")
_GROUP_START = re.compile(r"\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z\-]*):))?(?!\?)")
_FLAGS = re.compile(r"\(\?(?P<flags>[a-zA-Z\-]+)\)")
_START_ANCHORS, _END_ANCHORS = ("^", r"\A"), ("$", r"\z")


class UnsupportedAnchor(Exception):
    """A pattern with anchors in places that they cannot be taken from."""


class _Alternative(NamedTuple):
    """An option, and whether a text begins and ends with it."""

    anchored_start: bool
    regex: str
    anchored_end: bool


def to_full_match(pattern: str, *, whole: bool = False) -> str:
    """A pattern that is searched for, as one that matches the whole text; `whole` if it does."""
    try:
        ways = _split_alternatives(pattern)
    except UnsupportedAnchor:
        ways = [_Alternative(False, pattern, False)]
    options = []
    for way in ways:
        front = "" if whole or way.anchored_start else r"(?s:.*)"
        back = "" if whole or way.anchored_end else r"(?s:.*)"
        options.append(f"{front}(?:{way.regex}){back}")
    found = "|".join(options)
    slashed = re.sub(r"(?s)(\\.)|/", lambda one: one[1] or r"\/", found)
    return (slashed if whole else expand_classes(slashed, ASCII_CLASSES)).replace("\n", r"\n")


@lru_cache(maxsize=512)
def is_supported_pattern(pattern: str) -> bool:
    """Whether the engine can read what comes of a pattern."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark(f"start: /{to_full_match(pattern)}/")
    return not LLMatcher.validate_grammar(grammar)


def expand_classes(pattern: str, classes: ClassDefinitions) -> str:
    r"""A pattern with other words for `\d` and its like."""
    return _TOKEN.sub(lambda found: _expand_token(found[0], classes), pattern)


def _expand_token(token: str, classes: ClassDefinitions) -> str:
    if token[0] == "[" and token[1:]:
        # a hyphen after it was none of a range
        return _CLASS_MEMBER.sub(
            lambda found: (
                classes[found[1]][1] + (r"\-" if found[2] else "") if found[1] else found[0]
            ),
            token,
        )
    return classes[token[1]][0] if token[0] == "\\" and token[1] in classes else token


def _split_alternatives(said: str, depth: int = 0) -> list[_Alternative]:
    """The options of a pattern or of what stands in a bracket."""
    if depth > MAX_DEPTH:
        raise UnsupportedAnchor
    flags = _FLAGS.match(said)
    options = _group_by_bar(_split_parts(said[flags.end() :] if flags else said))
    if len(options) > 1 and any(_FLAGS.match(part) for option in options for part in option):
        raise UnsupportedAnchor  # they would hold for the options that follow, too
    found = [way for option in options for way in _strip_anchors(option, depth)]
    return [_apply_flags(way, flags["flags"]) for way in found] if flags else found


def _apply_flags(way: _Alternative, flags: str | None) -> _Alternative:
    if not flags:
        return way
    if not set(flags) <= set("isuU-"):
        raise UnsupportedAnchor
    return way._replace(regex=f"(?{flags}:{way.regex})")


def _split_parts(said: str) -> list[str]:
    """What stands one after the other: a letter, a class or a bracket, with its count; or a bar."""
    found, at = [], 0
    while at < len(said):
        start, at = at, _find_end(said, at)
        count = _QUANTIFIER.match(said, at)
        at = at if count is None or said[start] == "|" else count.end()
        found.append(said[start:at])
    return found


def _find_end(said: str, at: int) -> int:
    """Where that ends which begins somewhere."""
    depth = 0
    for token in _TOKEN.finditer(said, at):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth <= 0:
            return token.end()
    return len(said)


def _group_by_bar(parts: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for part in parts:
        if part == "|":
            found.append([])
        else:
            found[-1].append(part)
    return found


def _strip_anchors(parts: list[str], depth: int) -> list[_Alternative]:
    """An option without its anchors: several where they stood in a bracket."""
    first, last = 0, len(parts)
    while first < last and parts[first] in _START_ANCHORS:
        first += 1
    while first < last and parts[last - 1] in _END_ANCHORS:
        last -= 1
    starts, ends, inner = first > 0, last < len(parts), parts[first:last]
    held = [at for at, part in enumerate(inner) if _has_anchor(part)]
    if not held:
        return [_Alternative(starts, "".join(inner), ends)]
    if not set(held) <= {0, len(inner) - 1}:
        raise UnsupportedAnchor
    at = held[0]
    before, after = "".join(inner[:at]), inner[at + 1 :]
    found = []
    for way in _split_group(inner[at], depth):
        if (way.anchored_start and before) or (way.anchored_end and after):
            raise UnsupportedAnchor
        for rest in _strip_anchors(after, depth):
            text = f"{before}(?:{way.regex}){rest.regex}"
            found.append(
                _Alternative(
                    starts or way.anchored_start,
                    text,
                    ends or way.anchored_end or rest.anchored_end,
                )
            )
        if len(found) > MAX_ALTERNATIVES:
            raise UnsupportedAnchor
    return found


def _has_anchor(part: str) -> bool:
    return any(token in (*_START_ANCHORS, *_END_ANCHORS) for token in _TOKEN.findall(part))


def _split_group(part: str, depth: int) -> list[_Alternative]:
    opened = _GROUP_START.match(part)
    if opened is None or not part.endswith(")"):
        raise UnsupportedAnchor
    ways = _split_alternatives(part[opened.end() : -1], depth + 1)
    return [_apply_flags(way, opened["flags"]) for way in ways]
