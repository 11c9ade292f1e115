"""Patterns of JSON Schema, which are those of JavaScript, as llguidance reads them.

In a character class, llguidance reads `[`, `&&`, `--` and `~~` as operators, and it lacks some of
JavaScript's escapes.
"""

from __future__ import annotations

import re

from dragoman.grammar.regex.char_sets import CharSet, get_chars, intersect, to_regex_class
from dragoman.grammar.regex.full_match import to_full_match
from dragoman.grammar.regex.rewrite import rewrite_regex

FIRST_PRINTABLE = 0x20
_CONTROL = re.compile(r"\\c([A-Za-z])|\\0(?![0-9])")
_SURROGATES = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_MEMBER = re.compile(r"\\[\s\S]|[\s\S]")
_ANY_CHARACTER = r"[\s\S]"
_OPERATORS = "[&~-"


def translate_pattern(pattern: str) -> str | None:
    """Translate a pattern; return None if a class has no equivalent, such as the empty one."""
    parts, position = [], 0
    while position < len(pattern):
        if pattern[position] == "[":
            end, text = _translate_class(pattern, position + 1)
            if text is None:
                return None
        elif pair := _SURROGATES.match(pattern, position):
            high, low = int(pair[1], 16), int(pair[2], 16)
            end, text = pair.end(), chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF))
        else:
            end, text = _translate_member(pattern, position)
        parts.append(text)
        position = end
    return "".join(parts)


def _translate_member(pattern: str, position: int) -> tuple[int, str]:
    """Translate a character or an escape; return where it ends, and the translation."""
    control = _CONTROL.match(pattern, position)
    if control is not None:
        return control.end(), f"\\x{ord(control[1]) % 32 if control[1] else 0:02x}"
    member = _MEMBER.match(pattern, position)
    return (position, "") if member is None else (member.end(), member[0])


def _translate_class(pattern: str, position: int) -> tuple[int, str | None]:
    """Translate a class after its opening bracket."""
    if pattern.startswith("^]", position):
        return position + 2, _ANY_CHARACTER
    if pattern.startswith("]", position):
        return position, None
    is_negated = pattern.startswith("^", position)
    position += is_negated
    parts = ["[^" if is_negated else "["]
    while position < len(pattern) and pattern[position] != "]":
        position, member = _translate_class_member(pattern, position)
        parts.append(member)
        ends_range = pattern[position + 1 : position + 2] not in ("", "]")
        if pattern.startswith("-", position) and ends_range:
            position, member = _translate_class_member(pattern, position + 1)
            parts.append("-" + member)
    parts.append(pattern[position : position + 1])
    return position + 1, "".join(parts)


def _translate_class_member(pattern: str, position: int) -> tuple[int, str]:
    if pattern.startswith("\\b", position):
        return position + 2, r"\x08"
    end, member = _translate_member(pattern, position)
    return end, "\\" + member if member in _OPERATORS else member


def is_weakened_by_llguidance(pattern: str) -> bool:
    """Whether llguidance would allow a quote or a backslash that a pattern excludes.

    It does so where a character class has control characters, but not these.
    """
    weakened = False

    def check(chars: CharSet) -> str:
        nonlocal weakened
        has_controls = any(low < FIRST_PRINTABLE for low, _ in chars)
        allowed = get_chars('"\\')
        weakened |= has_controls and intersect(chars, allowed) != allowed
        return to_regex_class(chars)

    rewrite_regex(to_full_match(pattern), check)
    return weakened
