"""Text as part of a regular expression."""

from __future__ import annotations

import re

from dragoman.output.spec import GAP

_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\f": r"\f", "\v": r"\v"}


def escaped(text: str) -> str:
    """A text as it stands inside a regular expression."""
    return "".join(_letter(letter) for letter in text)


def _letter(letter: str) -> str:
    if letter in _NAMED:
        return _NAMED[letter]
    if ord(letter) < 32 or ord(letter) == 127:
        return f"\\x{ord(letter):02x}"
    return _SPECIAL.sub(r"\\\g<0>", letter)


def beginnings(text: str) -> str:
    """A regular expression of what a text may begin with, but for nothing at all."""
    found = ""
    for letter in reversed(text):
        found = escaped(letter) + (f"(?:{found})?" if found else "")
    return found


def pattern(mark: str) -> str:
    """A mark as a regular expression; white space may stand at its gaps."""
    return r"[ \t\r\n]*".join(escaped(part) for part in mark.split(GAP))
