"""Reads the channel name that follows an opening marker: `<|channel>thought`, `<|channel>final`.

Upper and lower case are equal. A name may be on a line of its own or directly before the text
(`assistantHi`), but not be the beginning of a longer word (`finally`). White space before a name is
skipped. Another word directly after the marker is the first of reasoning without a name. A marker
that neither a name nor a word follows is text; of several markers in a row, the last counts.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from dragoman.output.arguments.call_body import get_markers
from dragoman.output.spec import ReasoningFormat
from dragoman.output.text_buffer import ReadSteps, TextBuffer

WORD = re.compile(r"(\s*)([A-Za-z0-9_-]*)")
MAX_LENGTH = 64  # characters of white space and name


class ChannelOpening(NamedTuple):
    """What follows an opening marker."""

    meaning: Literal["open", "close", "text", "drop"]  # of the marker; "open": opens reasoning
    end: int  # of the marker and the name in the buffer


def read_channel(
    buffer: TextBuffer, end: int, reasoning: ReasoningFormat
) -> ReadSteps[ChannelOpening]:
    """Return what a marker that ends at `end` opens; nothing is read yet.

    At the end of a text that was cut off, the beginning of a name is enough.
    """
    offset = end - buffer.pos
    while True:
        start = buffer.pos + offset
        match = WORD.match(buffer.text, start)
        assert match is not None  # noqa: S101  # it matches the empty text
        at_end = match.end() == len(buffer.text)
        if not at_end or buffer.has_ended or match.end() - start > MAX_LENGTH:
            break
        yield
    word, text = match[2], buffer.text
    if not word and (yield from _follows(buffer, match.end() - buffer.pos, reasoning.open)):
        return ChannelOpening("drop", buffer.pos + offset)
    for name, channel in reasoning.channels.items():
        meaning: Literal["open", "close"] = "open" if channel == "reasoning" else "close"
        if at_end and buffer.is_truncated and name.startswith(word.lower()):
            return ChannelOpening(meaning, match.end())
        name_end = match.start(2) + len(name)
        if not _is_name(word, name):
            continue
        separators = ("\n",) if meaning == "open" else ("\n", " ")
        if text[name_end : name_end + 1] in separators:
            return ChannelOpening(meaning, name_end + 1)
        if meaning == "close" or name_end == len(text):
            return ChannelOpening(meaning, name_end)
        length = name_end - buffer.pos
        if (yield from _follows(buffer, length, reasoning.close)):
            return ChannelOpening(meaning, buffer.pos + length)
    is_open = word and not match[1]
    return ChannelOpening("open" if is_open else "text", buffer.pos + offset)


def _follows(buffer: TextBuffer, offset: int, markers: tuple[str, ...]) -> ReadSteps[bool]:
    """Whether one of the markers begins `offset` characters after the position."""
    while True:
        start, _, index = get_markers(*markers).match_from(buffer, buffer.pos + offset)
        if index >= 0 or start < 0 or buffer.has_ended:
            return index >= 0
        yield


def _is_name(word: str, name: str) -> bool:
    """Whether a word is the name, or the name with the first word of the text attached to it."""
    rest = word[len(name) :]
    is_attached = rest[:1].isupper() and word[len(name) - 1].islower()
    return word[: len(name)].lower() == name and (not rest or is_attached)
