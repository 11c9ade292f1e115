"""Literal text and markers as regular expressions."""

from __future__ import annotations

import re

from dragoman.output.spec import GAP
from dragoman.output.text_buffer import INVISIBLE

_METACHARACTERS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
# white space as the parser reads it: Python counts four separators among it, and some characters
# without width are skipped like it
SPACE_CLASS = r"\s\x1c-\x1f"
SKIPPED_CLASS = SPACE_CLASS + INVISIBLE
GAP_REGEX = f"\\x{ord(GAP):02x}"  # as escaped below
_NAMED_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", "\v": r"\v"}


def escape_regex(text: str) -> str:
    """Return a regular expression that matches just this text."""
    return "".join(map(_escape_char, text))


def _escape_char(char: str) -> str:
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if ord(char) < 32 or ord(char) == 127:
        return f"\\x{ord(char):02x}"
    return _METACHARACTERS.sub(r"\\\g<0>", char)


def prefixes_to_regex(text: str) -> str:
    """Return a regular expression that matches every prefix of a text but the empty one."""
    regex = ""
    for char in reversed(text):
        regex = escape_regex(char) + (f"(?:{regex})?" if regex else "")
    return regex


def marker_to_regex(marker: str) -> str:
    """Return a regular expression for the spellings of a marker that the parser reads.

    There is white space at its gaps, and a line break inside it may be the one of Windows.
    """
    regex = escape_regex(marker[:1]) + escape_regex(marker[1:]).replace(r"\n", r"\r?\n")
    return regex.replace(GAP_REGEX, rf"[{SPACE_CLASS}]{{0,16}}")
