r"""Converts patterns that are searched for in a text to expressions that match the whole text.

llguidance has no anchors. So each alternative of a pattern is preceded and followed by `.*`, except
where it has an anchor. An anchor inside a group at the start or end of an alternative is moved out
of the group. In a schema `\d` and `\w` are ASCII, while those of llguidance follow Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

# by letter: what it stands for outside of a character class and inside one
ClassDefinitions: TypeAlias = Mapping[str, tuple[str, str]]

MAX_ALTERNATIVES = 64  # that result from groups with anchors
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
_CLASS = rf"\[\^?\]?(?:{_ESCAPE}|[^\]\\])*+(?:\]|\Z)"  # or unclosed, which is invalid
_TOKEN = re.compile(rf"{_ESCAPE}|{_CLASS}|(?s:.)")
_CLASS_MEMBER = re.compile(r"\\([dDwW])(-(?!\]))?|\\(?s:.)")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})[?+]?")
_GROUP_START = re.compile(r"\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z\-]*):))?(?!\?)")
_FLAGS = re.compile(r"\(\?(?P<flags>[a-zA-Z\-]+)\)")
_START_ANCHORS, _END_ANCHORS = ("^", r"\A"), ("$", r"\z")


class UnsupportedAnchor(Exception):
    """A pattern has an anchor in a place from which it cannot be removed."""


class _Alternative(NamedTuple):
    """An alternative without its anchors, and where it had some."""

    anchored_start: bool
    regex: str
    anchored_end: bool


def to_full_match(pattern: str, *, whole: bool = False) -> str:
    """Return an expression that matches the texts in which a pattern is found.

    A `whole` pattern is not searched for: it matches the whole text, and its anchors are redundant.
    """
    try:
        alternatives = _split_alternatives(pattern)
    except UnsupportedAnchor:
        alternatives = [_Alternative(False, pattern, False)]
    regexes = []
    for alternative in alternatives:
        before = "" if whole or alternative.anchored_start else r"(?s:.*)"
        after = "" if whole or alternative.anchored_end else r"(?s:.*)"
        regexes.append(f"{before}(?:{alternative.regex}){after}")
    regex = re.sub(r"(?s)(\\.)|/", lambda match: match[1] or r"\/", "|".join(regexes))
    return (regex if whole else expand_classes(regex, ASCII_CLASSES)).replace("\n", r"\n")


@lru_cache(maxsize=512)
def is_supported_pattern(pattern: str) -> bool:
    """Whether llguidance accepts the expression for a pattern that is searched for."""
    from llguidance import LLMatcher

    grammar = LLMatcher.grammar_from_lark(f"start: /{to_full_match(pattern)}/")
    return not LLMatcher.validate_grammar(grammar)


def expand_classes(pattern: str, classes: ClassDefinitions) -> str:
    r"""Replace `\d`, `\w` and their complements in a pattern by their definitions."""
    return _TOKEN.sub(lambda match: _expand_token(match[0], classes), pattern)


def _expand_token(token: str, classes: ClassDefinitions) -> str:
    if token[0] == "[" and token[1:]:
        # a hyphen after such a class did not denote a range, and must not denote one now
        return _CLASS_MEMBER.sub(
            lambda match: (
                classes[match[1]][1] + (r"\-" if match[2] else "") if match[1] else match[0]
            ),
            token,
        )
    return classes[token[1]][0] if token[0] == "\\" and token[1] in classes else token


def _split_alternatives(pattern: str, depth: int = 0) -> list[_Alternative]:
    """Return the alternatives of a pattern or of the content of a group, without anchors."""
    if depth > MAX_DEPTH:
        raise UnsupportedAnchor
    flags = _FLAGS.match(pattern)
    sequences = _split_at_bars(_split_parts(pattern[flags.end() :] if flags else pattern))
    if len(sequences) > 1 and any(_FLAGS.match(part) for parts in sequences for part in parts):
        raise UnsupportedAnchor  # the flags would apply to the following alternatives, too
    alternatives = [
        alternative for parts in sequences for alternative in _strip_anchors(parts, depth)
    ]
    if not flags:
        return alternatives
    return [_apply_flags(alternative, flags["flags"]) for alternative in alternatives]


def _apply_flags(alternative: _Alternative, flags: str | None) -> _Alternative:
    if not flags:
        return alternative
    if not set(flags) <= set("isuU-"):
        raise UnsupportedAnchor
    return alternative._replace(regex=f"(?{flags}:{alternative.regex})")


def _split_parts(pattern: str) -> list[str]:
    """Split a pattern into bars, and characters, classes and groups with their quantifiers."""
    parts, position = [], 0
    while position < len(pattern):
        start, position = position, _find_part_end(pattern, position)
        quantifier = _QUANTIFIER.match(pattern, position)
        if quantifier is not None and pattern[start] != "|":
            position = quantifier.end()
        parts.append(pattern[start:position])
    return parts


def _find_part_end(pattern: str, start: int) -> int:
    """Return where the character, class or group ends that starts at a position."""
    depth = 0
    for token in _TOKEN.finditer(pattern, start):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth <= 0:
            return token.end()
    return len(pattern)


def _split_at_bars(parts: list[str]) -> list[list[str]]:
    sequences: list[list[str]] = [[]]
    for part in parts:
        if part == "|":
            sequences.append([])
        else:
            sequences[-1].append(part)
    return sequences


def _strip_anchors(parts: list[str], depth: int) -> list[_Alternative]:
    """Remove the anchors of an alternative; those inside a group yield several alternatives."""
    first, last = 0, len(parts)
    while first < last and parts[first] in _START_ANCHORS:
        first += 1
    while first < last and parts[last - 1] in _END_ANCHORS:
        last -= 1
    anchored_start, anchored_end, inner = first > 0, last < len(parts), parts[first:last]
    with_anchors = [index for index, part in enumerate(inner) if _has_anchor(part)]
    if not with_anchors:
        return [_Alternative(anchored_start, "".join(inner), anchored_end)]
    if not set(with_anchors) <= {0, len(inner) - 1}:
        raise UnsupportedAnchor
    index = with_anchors[0]
    before, after = "".join(inner[:index]), inner[index + 1 :]
    alternatives = []
    for group in _split_group(inner[index], depth):
        if (group.anchored_start and before) or (group.anchored_end and after):
            raise UnsupportedAnchor
        for rest in _strip_anchors(after, depth):
            starts = anchored_start or group.anchored_start
            ends = anchored_end or group.anchored_end or rest.anchored_end
            regex = f"{before}(?:{group.regex}){rest.regex}"
            alternatives.append(_Alternative(starts, regex, ends))
        if len(alternatives) > MAX_ALTERNATIVES:
            raise UnsupportedAnchor
    return alternatives


def _has_anchor(part: str) -> bool:
    return any(token in (*_START_ANCHORS, *_END_ANCHORS) for token in _TOKEN.findall(part))


def _split_group(part: str, depth: int) -> list[_Alternative]:
    start = _GROUP_START.match(part)
    if start is None or not part.endswith(")"):
        raise UnsupportedAnchor
    alternatives = _split_alternatives(part[start.end() : -1], depth + 1)
    return [_apply_flags(alternative, start["flags"]) for alternative in alternatives]
