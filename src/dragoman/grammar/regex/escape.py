"""Literal text and markers as regular expressions."""

from __future__ import annotations

import re

from dragoman.output.spec import GAP

_METACHARACTERS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
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
    """Return a regular expression for a marker, with optional white space at its gaps."""
    return r"[ \t\r\n]*".join(escape_regex(part) for part in marker.split(GAP))
