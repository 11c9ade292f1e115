"""Reads the headers of messages."""

from __future__ import annotations

import re

from dragoman.output.arguments.call_body import get_markers
from dragoman.output.spec import MessageHeader
from dragoman.output.text_buffer import ReadSteps, TextBuffer, is_at_marker, skip_space

WORD = re.compile(r"[\w.\-]*")
HEADER_WORDS = re.compile(r"[\w.\-\s]{0,128}")  # header text that has no meaning to the parser


def is_header_start(header: MessageHeader, text: str) -> bool:
    """Whether a text is the beginning of a header, so that it contains no words of the answer."""
    text = text.removeprefix(header.separator).lstrip()
    for _, spelling in header.spellings:
        head, name, tail = spelling.lstrip().partition("{name}")
        if head.startswith(text):
            return True
        rest = WORD.sub("", text.removeprefix(head), count=1)
        if name and text.startswith(head) and tail.startswith(rest):
            return True
    return False


def starts_inside_header(buffer: TextBuffer, header: MessageHeader) -> ReadSteps[bool]:
    """Whether an answer starts in the middle of a header."""
    if any(header.answer_starts):
        yield from skip_space(buffer)
        return (yield from is_at_marker(buffer, get_markers(*header.answer_starts)))
    yield from skip_space(buffer, WORD)
    return (yield from is_at_marker(buffer, get_markers(*header.end)))
