"""The buffer from which all readers of the parser read, while text arrives.

Every reader is a generator that reads from one `TextBuffer` and yields when it has consumed all of
it. It is resumed with more text, or with `ended` set. A reader is therefore written as if the whole
text were available, and streaming needs no second implementation.

Text that was read can be held until its meaning is known: `hold` sets the start, `take_held`
returns the text from there on. Pushing a piece takes time proportional to the length of that piece
and of the unread tail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from dragoman.output.marker_patterns import (
    is_run,
    list_spellings,
    write_partial_pattern,
    write_pattern,
)
from dragoman.output.spec import GAP

T = TypeVar("T")
ReadSteps = Generator[None, None, T]

INVISIBLE = "\ufeff\u200b\u2060"  # a byte order mark and spaces without width
SPACE = re.compile(rf"[\s{INVISIBLE}]*")
WORDS = re.compile(r"[\w\s]*")
MAX_ENCLOSED = 64  # characters between the markers of a pair that is skipped
MAX_NAME = 256  # characters; anything longer is not a name, a key or a header


class UnexpectedEnd(Exception):
    """The text ended in the middle of something."""


class Mismatch(Exception):
    """The text does not have the form that its beginning announced, such as that of a call."""


class TextBuffer:
    """Text that arrives in pieces."""

    __slots__ = (
        "_after_stop",
        "_held",
        "_held_from",
        "_held_start",
        "_is_finished",
        "_stop_markers",
        "base",
        "has_ended",
        "in_call",
        "is_stopped",
        "is_truncated",
        "pos",
        "text",
    )

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0  # of the next unread character
        self.base = 0  # position of `text` in the whole output
        self.has_ended = False
        self.is_truncated = False  # the text ended, but the model did not end it
        self.in_call = False  # whether a call is being read
        self._held: list[str] | None = None
        self._held_from = 0
        self._held_start = 0
        self._is_finished = False  # whether no more text arrives
        self._stop_markers: MarkerSet | None = None
        self._after_stop = ""
        self.is_stopped = False  # whether `text` ends here for now because a stop marker follows

    def push(self, piece: str) -> None:
        """Append text."""
        if self._stop_markers is not None:
            if self.is_stopped:
                self._after_stop += piece
                return
            piece, self._after_stop = self._after_stop + piece, ""
        pos, text = self.pos, self.text
        if self._held is not None:
            self._held.append(text[self._held_from : pos])
            self._held_from = 0
        if pos:
            self.base += pos
            self.pos = 0
        self.text = text[pos:] + piece if pos < len(text) else piece
        if self._stop_markers is not None:  # no marker starts before the piece: see `_apply_stop`
            self._apply_stop(len(self.text) - len(piece))

    def stop_before(self, markers: MarkerSet) -> None:
        """Treat the text as ended before the first of the markers, until `resume`."""
        self._stop_markers = markers
        self._apply_stop(self.pos)

    def _apply_stop(self, position: int) -> None:
        """Keep back what follows a marker from this position on, or may become a marker."""
        assert self._stop_markers is not None  # noqa: S101
        start, _, index = self._stop_markers.search_from(self, position)
        self.text, self._after_stop = self.text[:start], self.text[start:]
        self.is_stopped = index >= 0
        self.has_ended = self.has_ended or self.is_stopped

    def resume(self) -> None:
        """Continue past the stop marker."""
        self.has_ended = self._is_finished
        self.text += self._after_stop
        self._stop_markers, self._after_stop, self.is_stopped = None, "", False

    def finish(self, *, truncated: bool = False) -> None:
        """Signal that no more text arrives."""
        self._is_finished = self.has_ended = True
        self.is_truncated = truncated
        if self._stop_markers is not None and not self.is_stopped:
            self.text += self._after_stop
            self._after_stop = ""

    def hold(self) -> None:
        """Hold the text that is read from here on."""
        self._held, self._held_from, self._held_start = [], self.pos, self.base + self.pos

    def take_held(self) -> tuple[str, int]:
        """Return the text read since `hold` and where it starts, and stop holding."""
        if self._held is None:
            return "", self.base + self.pos
        text = "".join([*self._held, self.text[self._held_from : self.pos]])
        self._held = None
        return text, self._held_start

    def hold_again(self, text: str, start: int) -> None:
        """Hold text that was taken before, and what is read from here on."""
        self._held, self._held_from, self._held_start = [text], self.pos, start

    def get_held_text(self) -> str:
        """Return the text read since `hold`, and keep holding it."""
        return "".join([*(self._held or ()), self.text[self._held_from : self.pos]])

    def drop_held(self) -> None:
        self._held = None

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    @property
    def has_more(self) -> bool:
        """Whether there is unread text."""
        return self.pos < len(self.text)


class MarkerSet:
    """Finds the first of several markers, or a tail that may still become a marker."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.markers = tuple(dict.fromkeys(marker for marker in markers if marker))
        self.first_chars = frozenset(marker[0] for marker in self.markers)
        self._index = {marker.replace(GAP, ""): index for index, marker in enumerate(self.markers)}
        self._has_gaps = any(GAP in marker for marker in self.markers)
        self._prefixes = {
            self._index[marker]
            for marker in self._index
            for other in self._index
            if other != marker and other.startswith(marker)
        }
        self._patterns = (
            [re.compile(write_pattern(marker)) for marker in self.markers] if self._has_gaps else []
        )
        self._has_lines = any("\n" in marker for marker in self.markers)
        ordered = sorted(self.markers, key=len, reverse=True)
        spellings = [text for marker in ordered for text in list_spellings(marker)]
        whole = [write_pattern(text) for text in spellings]
        parts = [part for text in spellings if (part := write_partial_pattern(text))]
        # a tail that may grow into a longer marker wins over a shorter marker that is complete
        self._prefixes |= {self._index[marker] for marker in self._index if is_run(marker)}
        growing = {self.markers[index] for index in self._prefixes}
        certain = [
            write_pattern(text)
            for marker in ordered
            if marker not in growing
            for text in list_spellings(marker)
        ]
        live = re.compile("|".join(certain + parts + whole) or r"(?!)")
        last = re.compile("|".join(whole) or r"(?!)")
        self._search = {False: live.search, True: last.search}
        self._match = {False: live.match, True: last.match}

    def search(self, buffer: TextBuffer) -> tuple[int, int, int]:
        """Return start, end and index of the next marker; index -1 for a tail or no marker."""
        match = self._search[buffer.has_ended](buffer.text, buffer.pos)
        if match is None:
            size = len(buffer.text)
            return size, size, -1
        return self._describe_match(match, buffer)

    def match(self, buffer: TextBuffer) -> tuple[int, int, int]:
        """Like `search`, for a marker at the current position; start -1 means there is none."""
        if buffer.pos >= len(buffer.text):
            return buffer.pos, buffer.pos, -1
        match = self._match[buffer.has_ended](buffer.text, buffer.pos)
        return (-1, -1, -1) if match is None else self._describe_match(match, buffer)

    def check_cut(self, buffer: TextBuffer) -> None:
        """Raise `UnexpectedEnd` if the token limit cut one of the markers of a call here."""
        if not (buffer.is_truncated and buffer.in_call):
            return
        if not buffer.has_more or self.is_cut_at(buffer, buffer.pos):
            raise UnexpectedEnd

    def is_cut_at(self, buffer: TextBuffer, position: int) -> bool:
        """Whether the text ends in a marker that starts at this position."""
        match = self._match[False](buffer.text, position)
        return match is not None and match.end() == len(buffer.text)

    def find_cut_marker(self, buffer: TextBuffer) -> int:
        """Return the start of a marker that the text cuts off, not counting words; else the end."""
        match = self._search[False](buffer.text, buffer.pos)
        is_word = match is None or WORDS.fullmatch(match.group()) is not None
        return len(buffer.text) if match is None or is_word else match.start()

    def find_end(self, buffer: TextBuffer) -> int:
        """Return where a value ends with the text, or before a marker that was cut."""
        match = self._search[False](buffer.text, buffer.pos)
        is_cut = match is not None and (buffer.is_truncated or len(match.group()) > 1)
        return match.start() if match is not None and is_cut else len(buffer.text)

    def search_from(self, buffer: TextBuffer, position: int) -> tuple[int, int, int]:
        """Like `search`, from a later position, and without reading up to it."""
        pos, buffer.pos = buffer.pos, position
        try:
            return self.search(buffer)
        finally:
            buffer.pos = pos

    def match_from(self, buffer: TextBuffer, position: int) -> tuple[int, int, int]:
        """Like `match`, at a later position, and without reading up to it."""
        pos, buffer.pos = buffer.pos, position
        try:
            return self.match(buffer)
        finally:
            buffer.pos = pos

    def _describe_match(self, match: re.Match[str], buffer: TextBuffer) -> tuple[int, int, int]:
        text = match.group()
        start, end = match.span()
        if self._has_lines and "\r" in text:
            text = text.replace("\r\n", "\n")
        index = self._find_with_gaps(text) if self._has_gaps else self._index.get(text, -1)
        if index in self._prefixes and end == len(buffer.text) and not buffer.has_ended:
            return start, end, -1  # it may grow into a longer marker
        return start, end, index

    def _find_with_gaps(self, text: str) -> int:
        return next(
            (index for index, pattern in enumerate(self._patterns) if pattern.fullmatch(text)), -1
        )


def find_last_marker(text: str, markers: Sequence[str]) -> tuple[int, int]:
    """Return start and end of the last of the markers in a text, or (-1, -1)."""
    spans = [
        (start, start + len(marker)) for marker in markers if (start := text.rfind(marker)) >= 0
    ]
    for marker in markers:
        if GAP in marker:
            spans += [match.span() for match in re.finditer(write_pattern(marker), text)]
    return max(spans, default=(-1, -1))


def skip_space(buffer: TextBuffer, pattern: re.Pattern[str] = SPACE) -> ReadSteps[None]:
    """Skip white space, or characters that the pattern matches, up to the next other character."""
    while True:
        match = pattern.match(buffer.text, buffer.pos)
        if match is not None:
            buffer.pos = match.end()
        if buffer.pos < len(buffer.text) or buffer.has_ended:
            return
        yield


def peek_char(buffer: TextBuffer) -> ReadSteps[str]:
    """Return the next character without reading it; empty at the end."""
    while buffer.pos >= len(buffer.text):
        if buffer.has_ended:
            return ""
        yield
    return buffer.text[buffer.pos]


def read_marker(buffer: TextBuffer, markers: MarkerSet) -> ReadSteps[int]:
    """Read the marker at the current position and return its index, or -1 if there is none."""
    while True:
        start, end, index = markers.match(buffer)
        if index >= 0:
            if buffer.is_truncated and end < len(buffer.text):
                markers.check_cut(buffer)  # of a longer marker
            buffer.pos = end
            return index
        if start < 0 or buffer.has_ended:
            markers.check_cut(buffer)
            return -1
        yield


def is_at_marker(buffer: TextBuffer, markers: MarkerSet) -> ReadSteps[bool]:
    """Whether one of the markers follows; it is not read."""
    while True:
        start, _, index = markers.match(buffer)
        if index >= 0:
            return True
        if start < 0 or buffer.has_ended:
            markers.check_cut(buffer)
            return False
        yield


def read_closing_marker(buffer: TextBuffer, markers: MarkerSet) -> ReadSteps[bool]:
    """Read a closing marker if one follows; at the end of the text, part of one is enough."""
    while True:
        start, end, index = markers.match(buffer)
        if index >= 0:
            buffer.pos = end
            return True
        if buffer.has_ended:
            rest = buffer.text[buffer.pos : buffer.pos + MAX_NAME]
            is_partial = len(rest) > 1 and any(
                marker.replace(GAP, "").startswith(rest) for marker in markers.markers
            )
            buffer.pos += len(rest) if is_partial else 0
            return is_partial
        if start < 0:
            return False
        yield


def read_until(
    buffer: TextBuffer, markers: MarkerSet, max_length: int = MAX_NAME
) -> ReadSteps[tuple[str, str, int]]:
    """Read a short text up to a marker; return the text, the marker and the marker's end.

    The marker itself is not read. Raises `Mismatch` if the text is too long.
    """
    parts: list[str] = []
    size = 0
    while True:
        start, end, index = markers.search(buffer)
        remaining = max_length - size
        if start - buffer.pos > remaining:  # the same position however the text was cut
            buffer.pos += remaining
            raise Mismatch
        parts.append(buffer.text[buffer.pos : start])
        size += start - buffer.pos
        buffer.pos = start
        if index >= 0:
            return "".join(parts), markers.markers[index], end
        if buffer.has_ended:
            raise UnexpectedEnd
        yield


def stream_until(
    buffer: TextBuffer, markers: MarkerSet, out: Callable[[str], object]
) -> ReadSteps[tuple[str, int]]:
    """Pass all text before a marker to `out`; return the marker, still unread, and its end."""
    while True:
        start, end, index = markers.search(buffer)
        is_over = index < 0 and buffer.has_ended
        if is_over:
            start = markers.find_end(buffer)
        piece, buffer.pos = buffer.text[buffer.pos : start], start
        if piece:
            out(piece)
        if index >= 0:
            return markers.markers[index], end
        if is_over:
            buffer.pos = len(buffer.text)  # a marker that was cut is not text
            raise UnexpectedEnd
        yield


def read_enclosed(buffer: TextBuffer, close: MarkerSet, others: MarkerSet) -> ReadSteps[bool]:
    """Read up to a closing marker; False if words or another marker come before it."""
    markers = MarkerSet((*close.markers, *others.markers))
    try:
        text, marker, end = yield from read_until(buffer, markers, MAX_ENCLOSED)
    except (UnexpectedEnd, Mismatch):
        return False
    if marker not in close.markers:
        return False
    buffer.pos = end
    return not any(map(str.isalpha, text))
