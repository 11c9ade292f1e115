"""JSON as a line of its own.

Many clients split lines as Python's `str.splitlines` does: also at characters that JSON allows in a
string. Such characters are escaped.
"""

from __future__ import annotations

_LINE_BREAKS = {
    text.encode(): f"\\u{ord(text):04x}".encode() for text in ("\x85", "\u2028", "\u2029")
}


def make_line(data: bytes) -> bytes:
    """Return a line from JSON that contains no line feed."""
    if not data.isascii():
        for text, escape in _LINE_BREAKS.items():
            data = data.replace(text, escape)
    return data + b"\n"
