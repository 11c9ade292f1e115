"""What the parser hands out."""

from __future__ import annotations

from typing import NamedTuple

from dragoman.events import Channel


class Span(NamedTuple):
    """A piece of one channel.

    `start` is where in the model's output the piece begins; text and reasoning are always pieces
    of that output as they are, so `start` and the length say which of its characters they cover.
    """

    channel: Channel
    text: str
    start: int = 0
    call: int = 0  # which tool call, on the tool_* channels
    id: str = ""  # the id that the model itself gave the call, with its name
