"""Text as part of a regular expression."""

from __future__ import annotations

import re

from dragoman.output.spec import GAP

_METACHARACTERS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
_NAMED_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", "\v": r"\v"}


def escape_regex(text: str) -> str:
    """A text as it stands inside a regular expression."""
    return "".join(_escape_char(letter) for letter in text)


def _escape_char(letter: str) -> str:
    if letter in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[letter]
    if ord(letter) < 32 or ord(letter) == 127:
        return f"\\x{ord(letter):02x}"
    return _METACHARACTERS.sub(r"\\\g<0>", letter)


def prefixes_to_regex(text: str) -> str:
    """A regular expression of what a text may begin with, but for nothing at all."""
    found = ""
    for letter in reversed(text):
        found = escape_regex(letter) + (f"(?:{found})?" if found else "")
    return found


def marker_to_regex(mark: str) -> str:
    """A mark as a regular expression; white space may stand at its gaps."""
    return r"[ \t\r\n]*".join(escape_regex(part) for part in mark.split(GAP))
