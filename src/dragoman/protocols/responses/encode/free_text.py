r"""Free text out of the arguments of a call, as they come.

A model calls a tool that takes free text with `{"input": "…"}`, and the client is told the text
alone. The string is decoded while it grows: an escape that is cut waits for its rest, and so does
the first half of a surrogate pair. Arguments of any other form are kept until the call is over,
and then taken for what they are. However the arguments are cut, the text is the same.
"""

from __future__ import annotations

import re

import msgspec

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LEAST = '{"input":"'
_LONGEST = 256  # characters of an opening with all its white space
_LOST = "\ufffd"


class FreeTextDecoder:
    """Decodes the arguments of one call."""

    def __init__(self) -> None:
        self._held = ""  # what does not tell yet
        self._inside = False  # within the string
        self._plain = False  # within it, with nothing held
        self._high = ""  # the first half of a pair
        self._other: list[str] | None = None  # arguments of another form
        self.is_complete = False  # the string was closed

    def feed(self, text: str) -> str:
        """What the text gained."""
        if self._plain and '"' not in text and "\\" not in text:  # the usual case
            return text
        if self.is_complete:
            return ""
        if self._other is not None:
            self._other.append(text)
            return ""
        self._held += text
        if not self._inside and not self._opened():
            return ""
        said = self._decode()
        self._plain = not (self._held or self._high or self.is_complete)
        return said

    def _opened(self) -> bool:
        found = _OPENING.match(self._held)
        if found and found.end() <= _LONGEST:
            self._inside, self._held = True, self._held[found.end() :]
            return True
        if not _may_open(self._held):
            self._other, self._held = [self._held], ""
        return False

    def _decode(self) -> str:
        held, at, pieces = self._held, 0, []
        while at < len(held):
            if plain := _PLAIN.match(held, at):
                pieces.append(self._pair("") + plain[0])
                at = plain.end()
            elif held[at] == '"':
                self.is_complete = True
                pieces.append(self._pair(""))
                break
            else:
                size, said = self._escape(held, at)
                if not size:
                    break
                pieces.append(said)
                at += size
        self._held = "" if self.is_complete else held[at:]
        return "".join(pieces)

    def _escape(self, held: str, at: int) -> tuple[int, str]:
        """The size of an escape and what it says; no size if its rest has not come yet."""
        kind = held[at + 1 : at + 2]
        if not kind:
            return 0, ""
        if kind != "u":
            said = _ESCAPES.get(kind)
            if said is None:  # a stray sign: what stands behind it is read as it is
                return 1, self._pair("\\")
            return 2, self._pair(said)
        digits = held[at + 2 : at + 6]
        if len(digits) < 4 and '"' not in digits and "\\" not in digits:
            return 0, ""
        if not _HEX.fullmatch(digits):
            return 1, self._pair("\\")
        return 6, self._pair(chr(int(digits, 16)))

    def _pair(self, said: str) -> str:
        """A character, with the half of a pair that came before it, if one did."""
        high, self._high = self._high, ""
        if "\ud800" <= said <= "\udbff":
            self._high = said
            return _LOST if high else ""
        if "\udc00" <= said <= "\udfff":
            if not high:
                return _LOST
            return (high + said).encode("utf-16", "surrogatepass").decode("utf-16")
        return (_LOST if high else "") + said

    def close(self) -> str:
        """What is left at the end of the arguments."""
        if self._other is None and not self._inside:
            self._other = [self._held]
        if self._other is not None:
            return _taken("".join(self._other))
        return self._pair("") if not self.is_complete else ""


def _may_open(text: str) -> bool:
    """Whether a text may still become an opening."""
    return len(text) < _LONGEST and _LEAST.startswith("".join(text.split()))


def _taken(arguments: str) -> str:
    """Arguments of another form: the string in them, or they themselves."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return "" if _may_open(arguments) else arguments
    if value == {}:
        return ""
    said = value.get("input") if isinstance(value, dict) else value
    return said if isinstance(said, str) else arguments
