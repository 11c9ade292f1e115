r"""Decode free text from the arguments of a call while they arrive.

A model calls a tool that takes free text with `{"input": "…"}`, and the client receives the text
alone. The string is decoded as it grows: an incomplete escape is held until it is complete, and
so is the first half of a surrogate pair. Arguments of any other form are held until the call ends
and are then passed on as they are. The text does not depend on how the arguments are cut.
"""

from __future__ import annotations

import re

import msgspec

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SHORTEST_OPENING = '{"input":"'
_MAX_OPENING = 256  # characters of an opening with all its whitespace
_REPLACEMENT = "\ufffd"


class FreeTextDecoder:
    """Decodes the arguments of one call."""

    def __init__(self) -> None:
        self._held = ""  # not decided yet
        self._in_string = False
        self._is_plain = False  # in the string, with nothing held
        self._high_surrogate = ""
        self._other: list[str] | None = None  # arguments of another form
        self.is_complete = False  # the string was closed

    def feed(self, text: str) -> str:
        """Add text of the arguments; return the text that it decodes to."""
        if self._is_plain and '"' not in text and "\\" not in text:  # the usual case
            return text
        if self.is_complete:
            return ""
        if self._other is not None:
            self._other.append(text)
            return ""
        self._held += text
        if not self._in_string and not self._enter_string():
            return ""
        decoded = self._decode()
        self._is_plain = not (self._held or self._high_surrogate or self.is_complete)
        return decoded

    def _enter_string(self) -> bool:
        match = _OPENING.match(self._held)
        if match and match.end() <= _MAX_OPENING:
            self._in_string, self._held = True, self._held[match.end() :]
            return True
        if not _may_open(self._held):
            self._other, self._held = [self._held], ""
        return False

    def _decode(self) -> str:
        held, position, pieces = self._held, 0, []
        while position < len(held):
            if plain := _PLAIN.match(held, position):
                pieces.append(self._join_surrogates("") + plain[0])
                position = plain.end()
            elif held[position] == '"':
                self.is_complete = True
                pieces.append(self._join_surrogates(""))
                break
            else:
                size, decoded = self._decode_escape(held, position)
                if not size:
                    break
                pieces.append(decoded)
                position += size
        self._held = "" if self.is_complete else held[position:]
        return "".join(pieces)

    def _decode_escape(self, held: str, position: int) -> tuple[int, str]:
        """Return the size of an escape and its text; size 0 if it is incomplete."""
        kind = held[position + 1 : position + 2]
        if not kind:
            return 0, ""
        if kind != "u":
            character = _ESCAPES.get(kind)
            if character is None:  # a stray backslash: what follows is read as it is
                return 1, self._join_surrogates("\\")
            return 2, self._join_surrogates(character)
        digits = held[position + 2 : position + 6]
        if len(digits) < 4 and '"' not in digits and "\\" not in digits:
            return 0, ""
        if not _HEX.fullmatch(digits):
            return 1, self._join_surrogates("\\")
        return 6, self._join_surrogates(chr(int(digits, 16)))

    def _join_surrogates(self, character: str) -> str:
        """Join a character with the high surrogate before it, if there is one."""
        high, self._high_surrogate = self._high_surrogate, ""
        if "\ud800" <= character <= "\udbff":
            self._high_surrogate = character
            return _REPLACEMENT if high else ""
        if "\udc00" <= character <= "\udfff":
            if not high:
                return _REPLACEMENT
            return (high + character).encode("utf-16", "surrogatepass").decode("utf-16")
        return (_REPLACEMENT if high else "") + character

    def close(self) -> str:
        """Return the rest of the text at the end of the arguments."""
        if self._other is None and not self._in_string:
            self._other = [self._held]
        if self._other is not None:
            return _decode_other("".join(self._other))
        return self._join_surrogates("") if not self.is_complete else ""


def _may_open(text: str) -> bool:
    """Return whether a text may still become an opening."""
    return len(text) < _MAX_OPENING and _SHORTEST_OPENING.startswith("".join(text.split()))


def _decode_other(arguments: str) -> str:
    """Return the string in arguments of another form, or the arguments themselves."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return "" if _may_open(arguments) else arguments
    if value == {}:
        return ""
    text = value.get("input") if isinstance(value, dict) else value
    return text if isinstance(text, str) else arguments
