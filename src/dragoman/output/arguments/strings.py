"""Reads strings and bare words, up to their end or to a marker that ends the call."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.output.arguments.end_markers import (
    CLOSING_QUOTES,
    EndMarkers,
    ends_string,
    is_at_end,
    make_finder,
)
from dragoman.output.arguments.json_strings import escape, read_escape
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
)

Output = Callable[[str], object]


def read_quoted(buffer: TextBuffer, ends: EndMarkers, quote: str, out: Output) -> ReadSteps[None]:
    """Read a string up to its closing quote and emit it as JSON."""
    search = ends.string_breaks[quote].search
    while True:
        text, pos = buffer.text, buffer.pos
        match = search(text, pos)
        if match is None:
            if pos < len(text):
                buffer.pos = len(text)
                out(text[pos:] if pos else text)
            if buffer.has_ended:
                raise UnexpectedEnd
            yield
            continue
        end = match.start()
        char = text[end]
        if char == quote:
            buffer.pos = end + 1
            if end > pos:
                out(text[pos:end])
            return
        buffer.pos = end
        if end > pos:
            out(text[pos:end])
        if char == "\\":
            out((yield from read_escape(buffer)))
            continue
        if char in ends.string_chars and (
            yield from ends_string(buffer, ends, CLOSING_QUOTES[quote])
        ):
            raise Mismatch
        buffer.pos += 1
        out(escape(char))


def read_until_marker(
    buffer: TextBuffer,
    ends: EndMarkers,
    markers: MarkerSet,
    out: Output,
    convert: Callable[[str], str] = escape,
) -> ReadSteps[None]:
    """Read a string up to its closing marker, without escapes, and emit it converted."""
    all_markers, finder = ends.join(markers), make_finder(markers)
    while True:
        start, end, index = all_markers.search(buffer)
        if index < 0 and buffer.has_ended:
            start = all_markers.find_end(buffer)
        piece, buffer.pos = buffer.text[buffer.pos : start], start
        if piece:
            out(convert(piece))
        if 0 <= index < len(markers.markers):
            buffer.pos = end
            return
        if index >= 0:
            if (yield from ends_string(buffer, ends, finder)):
                raise Mismatch
            buffer.pos += 1
            out(convert(buffer.text[buffer.pos - 1]))
        elif buffer.has_ended:
            buffer.pos = len(buffer.text)  # a marker that was cut is not text
            raise UnexpectedEnd
        else:
            yield


def read_word(buffer: TextBuffer, ends: EndMarkers, pattern: re.Pattern[str]) -> ReadSteps[str]:
    """Read characters of a pattern, which excludes those that start an end marker."""
    parts: list[str] = []
    while True:
        match = pattern.match(buffer.text, buffer.pos)
        if match is not None:
            parts.append(match.group())
            buffer.pos = match.end()
        if buffer.has_more:
            char = buffer.text[buffer.pos]
            is_stop = pattern is ends.word and (char == "<" or char.isspace())
            is_over = is_stop or char not in ends.first_chars
            if is_over or (yield from is_at_end(buffer, ends)):
                return "".join(parts)
            parts.append(char)
            buffer.pos += 1
            continue
        if buffer.has_ended:
            if not parts or buffer.is_truncated:  # half a word is another word
                raise UnexpectedEnd
            return "".join(parts)
        yield
