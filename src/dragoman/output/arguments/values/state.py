"""Where the reader of a value is: what is open, what is held back, and what ends the value.

White space, commas and keys are held back until a value starts, so that what was emitted can always
be completed. `peek_plain` and `next_char` find the next character; the first is for the usual case,
in which it has arrived and cannot start a marker.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from dragoman.output.arguments.damage import ODD_SPACES, skip_odd_space
from dragoman.output.arguments.end_markers import (
    NO_ENDS,
    EndMarkers,
    is_at_end,
    is_next_call,
    starts_call,
)
from dragoman.output.arguments.schemas.argument_types import ArgumentTypes
from dragoman.output.arguments.strings import Output
from dragoman.output.text_buffer import MarkerSet, Mismatch, ReadSteps, TextBuffer, UnexpectedEnd

_SPACES = re.compile(r"[ \t\r\n]*")
_PRINTABLE = frozenset(map(chr, range(0x21, 0x7F)))
MAX_LEAD = 4096  # characters of white space and key held back before a value


@lru_cache(maxsize=256)
def find_plain_chars(marker_starts: frozenset[str]) -> frozenset[str]:
    """Return the characters of ASCII that start no marker, no comment and no other white space."""
    return _PRINTABLE - marker_starts - ODD_SPACES


class ValueState:
    """What is known of a value while it is read."""

    __slots__ = (
        "_buffer",
        "_current_key",
        "_ends",
        "_out",
        "_pending",
        "_pending_braces",
        "_pending_depth",
        "_plain_chars",
        "_plain_lists",
        "_string_markers",
        "_value_end",
        "stack",
        "types",
    )

    def __init__(
        self,
        buffer: TextBuffer,
        out: Output,
        string_markers: MarkerSet | None,
        types: ArgumentTypes,
    ) -> None:
        self._buffer = buffer
        self._out = out
        self._string_markers = string_markers
        self.types = types
        self._pending = ""  # the text before the next value, held back until the value starts
        self._pending_braces = ""  # braces that may open an object or a set, with text between
        self._pending_depth = 0  # how many such braces there are
        self._current_key: str | None = None  # the key of the value being read
        self.stack: list[str] = []  # the characters that close what is open
        self._value_end = 0  # the position up to which an object is known to be a value
        self._plain_lists: set[int] = set()  # depths of lists with an element that is not a call
        self.ends = NO_ENDS

    @property
    def ends(self) -> EndMarkers:
        """The markers that end the value, whatever is open."""
        return self._ends

    @ends.setter
    def ends(self, ends: EndMarkers) -> None:
        self._ends = ends
        self._plain_chars = find_plain_chars(ends.string_chars)

    def get_missing_end(self) -> str:
        """Return the text that completes the value emitted so far."""
        return "".join(reversed(self.stack[: len(self.stack) - self._pending_depth]))

    def get_held_text(self) -> str:
        """Return the text that was read but not emitted yet."""
        return self._pending_braces + (self._pending if self._pending.strip() else "")

    def peek_plain(self) -> str:
        """Return the next character if it has arrived and starts no marker; else nothing."""
        buffer = self._buffer
        text, pos = buffer.text, buffer.pos
        if pos < len(text):
            char = text[pos]
            if char == " " and pos + 1 < len(text) and len(self._pending) < MAX_LEAD:
                self._pending += " "
                buffer.pos = pos + 1
                char = text[pos + 1]
            if char in self._plain_chars:
                return char
        return ""

    def next_char(self) -> ReadSteps[str]:
        """Return the next character that is not white space; hold the white space back."""
        buffer = self._buffer
        while True:
            if buffer.pos < len(buffer.text):
                char = buffer.text[buffer.pos]
                if char not in " \t\r\n":
                    if self._is_at_string_marker(char):
                        return char
                    if char in self.ends.string_chars and (yield from self._is_over(char)):
                        raise Mismatch
                    if char in ODD_SPACES and (yield from skip_odd_space(buffer, self.stack)):
                        continue
                    return char
                match = _SPACES.match(buffer.text, buffer.pos)
                assert match is not None  # noqa: S101
                buffer.pos = match.end()
                self._pending += match.group()[: max(0, MAX_LEAD - len(self._pending))]
                continue
            if buffer.has_ended:
                raise UnexpectedEnd
            yield

    def _is_at_string_marker(self, char: str) -> bool:
        markers = self._string_markers
        return (
            markers is not None
            and char in markers.first_chars
            and markers.match(self._buffer)[2] >= 0
        )

    def _is_over(self, char: str) -> ReadSteps[bool]:
        """Whether a marker or the next call ends the value here, whatever is open."""
        ends, names = self.ends, self.types.tools
        if char != "{" or not self.types.may_be_object(self._get_key()):
            return (yield from is_at_end(self._buffer, ends))
        if not self.stack or self._buffer.base + self._buffer.pos < self._value_end:
            return False
        if len(self.stack) in self._plain_lists:
            return (yield from starts_call(self._buffer, ends, names))
        starts_line = "\n" in self._pending.rpartition(":")[2]
        is_call, length = yield from is_next_call(self._buffer, ends, names, starts_line)
        self._value_end = self._buffer.base + self._buffer.pos + length
        return is_call

    def _emit(self, text: str) -> None:
        """Emit the start of a value, preceded by everything held back for it."""
        lead, self._pending = self._pending_braces + self._pending, ""
        self._pending_braces, self._pending_depth = "", 0
        self._out(lead + text)

    def _get_key(self) -> str | None:
        """Return the key of the value being read, without quotes; None for inner values."""
        return None if self._current_key is None else json.loads(self._current_key)
