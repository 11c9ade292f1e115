"""Reads the channel name that follows an opening marker: `<|channel>thought`, `<|channel>final`.

Names count in any case. A name may stand on a line of its own or directly before the text
(`assistantHi`), but not be the beginning of a longer word (`finally`). White space before a name is
skipped. Another word directly after the marker is the first of reasoning without a name. A marker
that neither a name nor a word follows is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from dragoman.output.text_buffer import ReadSteps, TextBuffer

WORD = re.compile(r"(\s*)([A-Za-z0-9_-]*)")
MAX_LENGTH = 64  # characters of white space and name


class ChannelOpening(NamedTuple):
    """What follows an opening marker."""

    meaning: Literal["open", "close", "text"]  # opens reasoning, closes it, or is text
    end: int  # of the marker and the name in the buffer


def read_channel(
    buffer: TextBuffer, end: int, channels: Mapping[str, str], is_truncated: Callable[[], bool]
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
        if not at_end or buffer.ended or match.end() - start > MAX_LENGTH:
            break
        yield
    word, text = match[2], buffer.text
    for name, channel in channels.items():
        meaning: Literal["open", "close"] = "open" if channel == "reasoning" else "close"
        if at_end and is_truncated() and name.startswith(word.lower()):
            return ChannelOpening(meaning, match.end())
        name_end = match.start(2) + len(name)
        if not _is_name(word, name):
            continue
        separators = ("\n",) if meaning == "open" else ("\n", " ")
        if text[name_end : name_end + 1] in separators:
            return ChannelOpening(meaning, name_end + 1)
        if meaning == "close" or name_end == len(text):
            return ChannelOpening(meaning, name_end)
    return ChannelOpening("open" if word and not match[1] else "text", start)


def _is_name(word: str, name: str) -> bool:
    """Whether a word is the name, or the name with the first word of the text attached to it."""
    rest = word[len(name) :]
    is_attached = rest[:1].isupper() and word[len(name) - 1].islower()
    return word[: len(name)].lower() == name and (not rest or is_attached)
