"""Removes markers from a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.output.text_buffer import MarkerSet, TextBuffer


class MarkerFilter:
    """Removes markers from a streamed text."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = MarkerSet(markers)
        self._buffer = TextBuffer()

    def feed(self, text: str) -> str:
        self._buffer.push(text)
        return self._remove_markers()

    def close(self) -> str:
        self._buffer.has_ended = True
        return self._remove_markers() + self._buffer.text[self._buffer.pos :]

    def _remove_markers(self) -> str:
        buffer, parts = self._buffer, []
        while True:
            start, end, index = self._markers.search(buffer)
            parts.append(buffer.text[buffer.pos : start])
            buffer.pos = end if index >= 0 else start
            if index < 0:
                return "".join(parts)
