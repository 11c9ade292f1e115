"""The parser's result type."""

from __future__ import annotations

from typing import NamedTuple

from dragoman.events import Channel


class Span(NamedTuple):
    """A span of output on one channel.

    `start` is the offset of the span in the model's output. Text and reasoning are always
    unchanged parts of that output, so `start` and the length give the characters they cover. Those
    of a token are made with `tuple.__new__`, which takes half the time.
    """

    channel: Channel
    text: str
    start: int = 0
    call: int = 0  # which tool call, on the tool_* channels
    id: str = ""  # the id that the model gave the call, sent with its name
