"""Markers that show where the turns with a replay are in a rendered prompt.

The template renders the client's version of such a turn, with a marker in each of its texts: a
number between two code points that no other text contains. `special_tokens` removes those code
points from client text, so no client can forge a marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from dragoman.prompt.special_tokens import POSITION
from dragoman.prompt.template.capabilities import TemplateMessage
from dragoman.types import Chat, Json, ReplayedTurn

_WRITTEN = rf"(?:{POSITION}|\\[uU][fF][dD][dD]2)"  # as it is, or as `tojson` and `repr` write it
_MARKER = re.compile(rf"{_WRITTEN}(\d+){_WRITTEN}")


def find_replays(chat: Chat) -> list[ReplayedTurn]:
    """Return the replays of a chat in order. The number of a turn is its index in this list."""
    return [message.replay for message in chat.messages if message.replay is not None]


def drop_replays(chat: Chat) -> Chat:
    if not find_replays(chat):
        return chat
    return replace(chat, messages=tuple(replace(message, replay=None) for message in chat.messages))


def insert_markers(message: TemplateMessage, number: int, reasoning_fields: Sequence[str]) -> None:
    """Put a turn's marker into every text of it that a template may write."""
    marker = f"{POSITION}{number}{POSITION}"
    for name in reasoning_fields:
        if message.get(name):
            message[name] += marker
    for call in message.get("tool_calls") or ():
        function = call["function"]
        function["arguments"] = _mark_arguments(function["arguments"], marker)
    content, has_calls = message.get("content"), bool(message.get("tool_calls"))
    if isinstance(content, list):
        for part in content:
            kind = "thinking" if "thinking" in part else "text"
            if part[kind] or (kind == "text" and not has_calls):
                part[kind] += marker
    elif content or not has_calls:
        message["content"] = (content or "") + marker


def _mark_arguments(arguments: Json, marker: str) -> Json:
    """Put the marker in front as one more argument."""
    if isinstance(arguments, dict):
        return {marker: marker, **arguments}
    text = arguments.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return arguments + marker
    rest = text[1:].lstrip()
    return f'{{"{marker}": "{marker}"{"" if rest == "}" else ", "}{rest}'


def find_markers(pieces: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Return the first and the last piece that contain each marker, by its number."""
    spans: dict[int, tuple[int, int]] = {}
    for index in range(0, len(pieces), 2):
        piece = pieces[index]
        if POSITION not in piece and "\\" not in piece:
            continue
        for match in _MARKER.finditer(piece):
            number = int(match[1])
            spans[number] = (spans.get(number, (index, index))[0], index)
    return spans
