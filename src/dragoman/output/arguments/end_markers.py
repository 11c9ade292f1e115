"""Recognises the markers that end a call, wherever they are in its arguments.

A marker inside a string is part of the string only if the string is closed after it: models write
about their own markup. A model that forgets to close a string continues with the closing marker of
the call and the next call; the next quote then does not end a value.

In a list of calls there are no markers. There the start of the next object that has the members of
a call ends a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

from dragoman.output.spec import GAP, JsonObjects
from dragoman.output.text_buffer import (
    MarkerSet,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    is_at_marker,
)

NEVER = "(?!)"
SPACE, QUOTE = r"\s{0,16}", "[\"']"
MAX_LOOKAHEAD = 1 << 14  # characters in which a string must be closed after a marker

_TEXTS = re.compile(rf"{QUOTE}([^\"'\\]+){QUOTE}")
_FOLLOWER = re.compile(r"\s*(\S)?")
_OBJECT_PARTS = re.compile(r"[\"'{}\[\]]")
_STRING_PARTS = re.compile(r"[\"']|\\(?:.|\Z)", re.DOTALL)


class EndMarkers:
    """Markers that end a value, and the patterns of words and strings that stop at them."""

    def __init__(
        self,
        markers: MarkerSet | None = None,
        call_start: CallStart | None = None,
        call_opens: MarkerSet | None = None,
    ) -> None:
        self.markers = markers
        self.call_opens = call_opens or MarkerSet(())  # those of them that open a call
        self.call_start = call_start
        self.first_chars = frozenset() if markers is None else markers.first_chars
        # of what may end a call inside a string
        self.string_chars = self.first_chars | ({"{"} if call_start is not None else set())
        self.may_be_word = any(char.isalnum() or char == "_" for char in self.first_chars)
        stops = re.escape("".join(sorted(self.first_chars)))
        self.word = re.compile(rf"[^\s,;:=<\[\]{{}}()\"'{stops}]+")
        self.unquoted = re.compile(rf"[^,\]}}{stops}]+")
        # characters that end or interrupt a string, by its quote
        self.string_breaks = {
            quote: re.compile(self._write_string_breaks(rf"{inner}\\\x00-\x1f"))
            for quote, inner in (('"', '"'), ("'", "'\""))
        }

    def _write_string_breaks(self, always: str) -> str:
        """Return a pattern for characters that always interrupt a string, or start a marker.

        It starts with a set of characters, which makes the search fast.
        """
        markers = () if self.markers is None else self.markers.markers
        options = [(marker[0], _nest_atoms(_quote_prefix(marker[1:]))) for marker in markers]
        if self.call_start is not None:
            options.append((r"{", rf"{SPACE}(?:\Z|{QUOTE})"))
        if not options:
            return f"[{always}]"
        starts = re.escape("".join(sorted(self.string_chars)))
        rest = "|".join(f"(?<={re.escape(first)})(?=\\Z|{rest})" for first, rest in options)
        return f"[{always}{starts}](?:(?<=[{always}])|{rest})"

    def join(self, other: MarkerSet) -> MarkerSet:
        """Return the other markers, followed by these."""
        return other if self.markers is None else _join(other, self.markers)


@lru_cache(maxsize=128)
def _join(first: MarkerSet, second: MarkerSet) -> MarkerSet:
    return MarkerSet((*first.markers, *second.markers))


@lru_cache(maxsize=256)
def make_end_markers(
    markers: MarkerSet | None,
    call_opens: MarkerSet,
    body: JsonObjects | None = None,
    names: tuple[str, ...] = (),
) -> EndMarkers:
    """Return the end markers of a format; `names` are the declared tools."""
    has_start = body is not None and (names or not body.keyed)
    call_start = CallStart(body, names) if body is not None and has_start else None
    return EndMarkers(markers, call_start, call_opens)


class CallStart:
    """Recognises the start of an object that is a call: its name, then its arguments."""

    def __init__(self, body: JsonObjects, names: Sequence[str]) -> None:
        if body.keyed:
            sequences = [[*_iterate_key_atoms(name), r"\{"] for name in names]
        else:
            sequences = [
                list(_iterate_start_atoms(first, name, arguments))
                for first in ("", *body.id)
                for name in body.name
                for arguments in body.arguments
            ]
        self._whole = re.compile("|".join(map("".join, sequences)))
        self._first_quote = re.compile(rf"\{{{SPACE}({QUOTE})")
        self._part = re.compile(
            "|".join(f"(?:{_nest_atoms(atoms[:-1], NEVER)})" for atoms in sequences)
        )

    def is_at(self, buffer: TextBuffer) -> ReadSteps[bool]:
        while True:
            if self._whole.match(buffer.text, buffer.pos) is not None:
                return True
            if buffer.has_ended or self._part.match(buffer.text, buffer.pos) is None:
                return False
            yield

    def has_name(self, buffer: TextBuffer, names: Sequence[str]) -> bool:
        """Whether the call that starts here names one of these tools."""
        match = self._whole.match(buffer.text, buffer.pos)
        return match is not None and any(name in names for name in _TEXTS.findall(match.group()))

    def has_quote(self, buffer: TextBuffer, finder: Finder) -> bool:
        """Whether the object here has the quotes of the string around it: JSON escapes those."""
        if not isinstance(finder, QuoteFinder):
            return True
        match = self._first_quote.match(buffer.text, buffer.pos)
        return match is not None and match[1] == finder.quote


def _iterate_start_atoms(first: str, name: str, arguments: str) -> Iterator[str]:
    """Yield patterns for the single characters of a call's start: all members to its arguments."""
    text = (QUOTE, "[^\"'\\\\]{1,128}", QUOTE, SPACE, ",", SPACE)
    lead = r"\{"
    for key in filter(None, (first, name)):
        yield from _iterate_key_atoms(key, lead)
        yield from text
        lead = ""
    yield from _iterate_key_atoms(arguments, lead)


def _iterate_key_atoms(key: str, lead: str = r"\{") -> Iterator[str]:
    yield from filter(None, (lead, SPACE, QUOTE))
    yield from map(re.escape, key)
    yield from (QUOTE, SPACE, ":", SPACE)


def _quote_prefix(text: str) -> list[str]:
    """Return patterns for the first characters of a marker, enough to tell it from most text."""
    return [re.escape(char) for char in text.split(GAP)[0][:4]] or [""]


def _nest_atoms(atoms: Sequence[str], last: str = "") -> str:
    """Return a pattern for a sequence, or for its beginning at the end of the text."""
    pattern = last
    for atom in reversed(atoms):
        pattern = rf"{atom}(?:\Z|{pattern})" if pattern else atom
    return pattern


NO_ENDS = EndMarkers()


class QuoteFinder:
    """Decides whether a string is closed: a value can be over after its next quote."""

    def __init__(self, quote: str) -> None:
        self.quote = quote
        self._breaks = re.compile(rf"[{quote}\\\\]")

    def find(self, buffer: TextBuffer, start: int) -> tuple[bool | None, int]:
        """Return whether the string is closed, None if unknown; and where to go on looking."""
        text = buffer.text
        while (match := self._breaks.search(text, start)) is not None:
            if match[0] == self.quote:
                return can_end_value(buffer, match.end()), match.start()
            if match.end() == len(text):
                return None, match.start()
            start = match.end() + 1
        return None, len(text)


class MarkerFinder:
    """Decides whether a value is closed: one of `closes` comes before one of `opens`."""

    def __init__(self, closes: MarkerSet, opens: MarkerSet | None = None) -> None:
        self._count = len(closes.markers)
        self._markers = closes if opens is None else _join(closes, opens)
        self._ends_value = opens is None  # the markers are quotes

    def find(self, buffer: TextBuffer, start: int) -> tuple[bool | None, int]:
        found, end, index = self._markers.search_from(buffer, start)
        if index < 0:
            return None, found
        is_closed = can_end_value(buffer, end) if self._ends_value else index < self._count
        return is_closed, found


def can_end_value(buffer: TextBuffer, end: int) -> bool | None:
    """Whether the text after a closing quote can follow a value; None if there is none yet."""
    match = _FOLLOWER.match(buffer.text, end)
    char = None if match is None else match[1]
    if char is None:
        return True if buffer.has_ended and not buffer.is_truncated else None
    return char in ",}]):;\uff0c\uff1a\uff1b"


Finder: TypeAlias = QuoteFinder | MarkerFinder
CLOSING_QUOTES = {quote: QuoteFinder(quote) for quote in "\"'"}


@lru_cache(maxsize=512)
def make_finder(closes: MarkerSet, opens: MarkerSet | None = None) -> MarkerFinder:
    return MarkerFinder(closes, opens)


def ends_string(buffer: TextBuffer, ends: EndMarkers, finder: Finder) -> ReadSteps[bool]:
    """Whether the text at this position, inside a string, is a marker that ends the call.

    It is part of the string if the string is closed after it.
    """
    offset = 0  # from the position, which stays while more text arrives
    if ends.call_start is not None and buffer.text[buffer.pos] == "{":
        if not (yield from ends.call_start.is_at(buffer)):
            return False
        if ends.call_start.has_quote(buffer, finder):
            return True
        offset = 1
    markers = ends.markers
    while not offset:
        start, end, index = (-1, -1, -1) if markers is None else markers.match(buffer)
        if index >= 0:
            offset = end - buffer.pos
        elif start < 0 or buffer.has_ended:
            return False
        else:
            yield
    return not (yield from is_closed_after(buffer, offset, finder))


def is_closed_after(buffer: TextBuffer, offset: int, finder: Finder) -> ReadSteps[bool]:
    """Whether a string continues after `offset` characters, and is closed.

    Raises `UnexpectedEnd` if the token limit may have cut a string of JSON, which is one line.
    """
    start = offset
    while True:
        is_closed, position = finder.find(buffer, buffer.pos + offset)
        offset = position - buffer.pos
        if offset > MAX_LOOKAHEAD:  # first, so that it does not depend on how the text was cut
            return True
        if is_closed is not None:
            return is_closed
        if buffer.has_ended:
            is_line = "\n" not in buffer.text[buffer.pos + start :]
            if buffer.is_truncated and is_line and isinstance(finder, QuoteFinder):
                raise UnexpectedEnd
            return False
        yield


def starts_call(buffer: TextBuffer, ends: EndMarkers, names: Sequence[str]) -> ReadSteps[bool]:
    """Whether the object here, an element of a list, is the next call: of a declared tool."""
    if not (yield from is_at_end(buffer, ends)):
        return False
    return ends.call_start is None or not names or ends.call_start.has_name(buffer, names)


def is_next_call(
    buffer: TextBuffer, ends: EndMarkers, names: Sequence[str], starts_line: bool
) -> ReadSteps[tuple[bool, int]]:
    """Whether the object here, in the place of a value, is the next call: the value is missing.

    It starts like a call of a declared tool, and the object or list around it does not continue
    after it. The end of the text may have cut that off, so there a new line must separate the
    calls. Also returns how many characters were examined: objects inside them need no second check.
    """
    if ends.call_start is None or not (yield from starts_call(buffer, ends, names)):
        return False, 0
    end, is_found = yield from _find_object_end(buffer)
    while is_found:
        match = _FOLLOWER.match(buffer.text, buffer.pos + end)
        char = None if match is None else match[1]
        if char is not None:
            return char not in ",}])", end
        if buffer.has_ended:
            return starts_line and not buffer.is_truncated, end
        yield
    return False, end


def _find_object_end(buffer: TextBuffer) -> ReadSteps[tuple[int, bool]]:
    """Return how long the object here is, or as far as it was read, and whether it ends there."""
    offset, depth, quote = 0, 0, ""
    while True:
        limit = buffer.pos + MAX_LOOKAHEAD
        parts = _STRING_PARTS if quote else _OBJECT_PARTS
        match = parts.search(buffer.text, buffer.pos + offset, limit)
        if match is None or match[0] == "\\":
            if buffer.has_ended or len(buffer.text) >= limit:
                return min(len(buffer.text), limit) - buffer.pos, False
            offset = (len(buffer.text) if match is None else match.start()) - buffer.pos
            yield
            continue
        offset = match.end() - buffer.pos
        if match[0] in ('"', "'"):
            quote = "" if quote == match[0] else quote or match[0]
        elif not quote:
            depth += 1 if match[0] in "{[" else -1
            if not depth:
                return offset, True


def is_plain_object(buffer: TextBuffer, ends: EndMarkers, names: Sequence[str]) -> ReadSteps[bool]:
    """Whether the object here is not a call, where declared names tell calls from other objects."""
    if ends.call_start is None or not names or buffer.text[buffer.pos] != "{":
        return False
    return not (yield from ends.call_start.is_at(buffer))


def is_at_end(buffer: TextBuffer, ends: EndMarkers) -> ReadSteps[bool]:
    """Whether a marker that ends the call follows, or the start of another call."""
    if ends.call_start is not None and buffer.text[buffer.pos] == "{":
        return (yield from ends.call_start.is_at(buffer))
    return ends.markers is not None and (yield from is_at_marker(buffer, ends.markers))
