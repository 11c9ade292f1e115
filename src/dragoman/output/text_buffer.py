"""The text of an answer as it comes in, and how to wait for more of it.

Every part of the parser is a generator that reads from one `Source` and yields when it has used up
what is there. It is then resumed with more text, or with `ended` set. So a reader is written as if
the whole text were there, and there is no second way to read a stream.

What was read can be kept until it is clear what it is: `keep` markers a place, `kept` is the text
from there on. Pushing more text costs the length of that text and of the tail not yet read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from dragoman.output.spec import GAP

T = TypeVar("T")
ReadSteps = Generator[None, None, T]

SPACE = re.compile(r"\s*")
MAX_NESTED_PREFIX = 100  # characters of a marker, as deep as a pattern may nest
MAX_NAME = 256  # characters; nothing longer is a name, a key or a header


class UnexpectedEnd(Exception):
    """The text ended in the middle of something."""


class Mismatch(Exception):
    """What was read is not what it seemed to be."""


class TextBuffer:
    """A text that comes in pieces."""

    __slots__ = (
        "_after_stop",
        "_held",
        "_held_from",
        "_held_start",
        "_stop_markers",
        "base",
        "ended",
        "is_stopped",
        "pos",
        "text",
    )

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0  # what comes next
        self.base = 0  # where `text` begins in the whole
        self.ended = False
        self._held: list[str] | None = None
        self._held_from = 0
        self._held_start = 0
        self._stop_markers: MarkerSet | None = None
        self._after_stop = ""
        self.is_stopped = (
            False  # whether the text ends for now because a marker of the fence follows
        )

    def push(self, piece: str) -> None:
        """More text."""
        if self._stop_markers is not None:
            if self.is_stopped:
                self._after_stop += piece
                return
            piece, self._after_stop = self._after_stop + piece, ""
        at = self.pos
        if self._held is not None:
            self._held.append(self.text[self._held_from : at])
            self._held_from = 0
        self.base += at
        self.text = self.text[at:] + piece if at < len(self.text) else piece
        self.pos = 0
        if self._stop_markers is not None:
            self._apply_stop()

    def stop_before(self, markers: MarkerSet) -> None:
        """Nothing past one of the markers is to be read until `lift`: it is as if the text ended."""
        self._stop_markers = markers
        self._apply_stop()

    def _apply_stop(self) -> None:
        assert self._stop_markers is not None  # noqa: S101
        start, _, number = self._stop_markers.search(self)
        self.text, self._after_stop = self.text[:start], self.text[start:]
        self.is_stopped = number >= 0
        self.ended = self.ended or self.is_stopped

    def resume(self) -> None:
        """Read on past the fence."""
        self.ended = self.ended and not self.is_stopped
        self.text += self._after_stop
        self._stop_markers, self._after_stop, self.is_stopped = None, "", False

    def finish(self) -> None:
        """No more text comes."""
        self.ended = True
        if self._stop_markers is not None and not self.is_stopped:
            self.text += self._after_stop
            self._after_stop = ""

    def hold(self) -> None:
        """Keep what is read from here on."""
        self._held, self._held_from, self._held_start = [], self.pos, self.base + self.pos

    def take_held(self) -> tuple[str, int]:
        """What was read since `keep`, and where it began. Nothing is kept any longer."""
        if self._held is None:
            return "", self.base + self.pos
        text = "".join([*self._held, self.text[self._held_from : self.pos]])
        self._held = None
        return text, self._held_start

    def held_text(self) -> str:
        """What was read since `keep`; it is kept on."""
        return "".join([*(self._held or ()), self.text[self._held_from : self.pos]])

    def drop_held(self) -> None:
        self._held = None

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    @property
    def has_more(self) -> bool:
        """Whether there is text to read now."""
        return self.pos < len(self.text)


class MarkerSet:
    """Finds the first of several markers, or a tail that may still become one."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.markers = tuple(dict.fromkeys(marker for marker in markers if marker))
        self.first_chars = frozenset(marker[0] for marker in self.markers)
        self._index = {marker.replace(GAP, ""): at for at, marker in enumerate(self.markers)}
        self._has_gaps = any(GAP in marker for marker in self.markers)
        self._prefixes = {
            self._index[one]
            for one in self._index
            for other in self._index
            if other != one and other.startswith(one)
        }
        self._patterns = (
            [re.compile(_pattern(marker)) for marker in self.markers] if self._has_gaps else []
        )
        ordered = sorted(self.markers, key=len, reverse=True)
        whole = [_pattern(marker) for marker in ordered]
        parts = [part for marker in ordered if (part := _partial_pattern(marker))]
        # a tail that may become a longer marker comes before a shorter marker that is there already
        growing = {self.markers[at] for at in self._prefixes}
        sure = [_pattern(marker) for marker in ordered if marker not in growing]
        live = re.compile("|".join(sure + parts + whole) or r"(?!)")
        last = re.compile("|".join(whole) or r"(?!)")
        self._search = {False: live.search, True: last.search}
        self._match = {False: live.match, True: last.match}

    def search(self, buffer: TextBuffer) -> tuple[int, int, int]:
        """Start, end and number of the next marker; -1 for a tail, or none at the text's end."""
        return self._describe_match(
            self._search[buffer.ended](buffer.text, buffer.pos), len(buffer.text), buffer
        )

    def match(self, buffer: TextBuffer) -> tuple[int, int, int]:
        """The same for a marker that stands right here; a start of -1 says that none does."""
        if buffer.pos >= len(buffer.text):
            return buffer.pos, buffer.pos, -1
        return self._describe_match(self._match[buffer.ended](buffer.text, buffer.pos), -1, buffer)

    def _describe_match(
        self, found: re.Match[str] | None, missing: int, buffer: TextBuffer
    ) -> tuple[int, int, int]:
        if found is None:
            return missing, missing, -1
        said = found.group()
        start, end = found.span()
        number = self._find_with_gaps(said) if self._has_gaps else self._index.get(said, -1)
        if number in self._prefixes and end == len(buffer.text) and not buffer.ended:
            return start, end, -1  # it may become a longer one
        return start, end, number

    def _find_with_gaps(self, said: str) -> int:
        return next((at for at, one in enumerate(self._patterns) if one.fullmatch(said)), -1)


def _atoms(marker: str) -> list[str]:
    return [r"\s{0,16}" if char == GAP else re.escape(char) for char in marker]


def _pattern(marker: str) -> str:
    return "".join(_atoms(marker))


def _partial_pattern(marker: str) -> str:
    """A pattern for a beginning of the marker that stands at the end of the text."""
    *atoms, _ = _atoms(marker)
    if len(atoms) > MAX_NESTED_PREFIX:
        return "(?:" + "|".join("".join(atoms[:at]) for at in range(len(atoms), 0, -1)) + r")\Z"
    pattern = ""
    for atom in reversed(atoms):
        pattern = rf"{atom}(?:\Z|{pattern})" if pattern else rf"{atom}\Z"
    return pattern


def find_last_marker(text: str, markers: Sequence[str]) -> tuple[int, int]:
    """Where the last of the markers in a text begins and ends, or -1."""
    spans = [(at, at + len(marker)) for marker in markers if (at := text.rfind(marker)) >= 0]
    for marker in markers:
        if GAP in marker:
            spans += [found.span() for found in re.finditer(_pattern(marker), text)]
    return max(spans, default=(-1, -1))


class MarkerFilter:
    """Leaves markers out of a text."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._marks = MarkerSet(markers)
        self._src = TextBuffer()

    def feed(self, text: str) -> str:
        self._src.push(text)
        return self._rest()

    def close(self) -> str:
        self._src.ended = True
        return self._rest() + self._src.text[self._src.pos :]

    def _rest(self) -> str:
        buffer, parts = self._src, []
        while True:
            start, end, number = self._marks.search(buffer)
            parts.append(buffer.text[buffer.pos : start])
            buffer.pos = end if number >= 0 else start
            if number < 0:
                return "".join(parts)


def skip_space(buffer: TextBuffer, pattern: re.Pattern[str] = SPACE) -> ReadSteps[None]:
    """Read over white space, or what else the pattern says, to the next thing there is."""
    while True:
        found = pattern.match(buffer.text, buffer.pos)
        if found is not None:
            buffer.pos = found.end()
        if buffer.pos < len(buffer.text) or buffer.ended:
            return
        yield


def peek_char(buffer: TextBuffer) -> ReadSteps[str]:
    """The next character, not read yet; empty at the end."""
    while buffer.pos >= len(buffer.text):
        if buffer.ended:
            return ""
        yield
    return buffer.text[buffer.pos]


def read_marker(buffer: TextBuffer, markers: MarkerSet) -> ReadSteps[int]:
    """Read the marker that stands here: its number, or -1 if none does."""
    while True:
        start, end, number = markers.match(buffer)
        if number >= 0:
            buffer.pos = end
            return number
        if start < 0 or buffer.ended:
            return -1
        yield


def is_at_marker(buffer: TextBuffer, which: MarkerSet) -> ReadSteps[bool]:
    """Whether one of the markers stands here; it is not read."""
    while True:
        start, _, number = which.match(buffer)
        if number >= 0:
            return True
        if start < 0 or buffer.ended:
            return False
        yield


def read_closing_marker(buffer: TextBuffer, markers: MarkerSet) -> ReadSteps[bool]:
    """Read the marker that closes something, if it is here; at the end a part of it will do."""
    while True:
        start, end, number = markers.match(buffer)
        if number >= 0:
            buffer.pos = end
            return True
        if buffer.ended:
            rest = buffer.text[buffer.pos : buffer.pos + MAX_NAME]
            part = len(rest) > 1 and any(
                marker.replace(GAP, "").startswith(rest) for marker in markers.markers
            )
            buffer.pos += len(rest) if part else 0
            return part
        if start < 0:
            return False
        yield


def read_until(
    buffer: TextBuffer, markers: MarkerSet, longest: int = MAX_NAME
) -> ReadSteps[tuple[str, str, int]]:
    """Read a short text up to a marker: the text, the marker, and where the marker ends.

    The marker itself is not read. Refuses what is too long; may be cut.
    """
    parts: list[str] = []
    size = 0
    while True:
        start, end, number = markers.search(buffer)
        room = longest - size
        if start - buffer.pos > room:  # the same place wherever the text was cut
            buffer.pos += room
            raise Mismatch
        parts.append(buffer.text[buffer.pos : start])
        size += start - buffer.pos
        buffer.pos = start
        if number >= 0:
            return "".join(parts), markers.markers[number], end
        if buffer.ended:
            raise UnexpectedEnd
        yield


def stream_until(
    buffer: TextBuffer, markers: MarkerSet, out: Callable[[str], object]
) -> ReadSteps[tuple[str, int]]:
    """Hand out all text up to a marker; the marker, which is not read, and where it ends."""
    while True:
        start, end, number = markers.search(buffer)
        piece, buffer.pos = buffer.text[buffer.pos : start], start
        if piece:
            out(piece)
        if number >= 0:
            return markers.markers[number], end
        if buffer.ended:
            piece, buffer.pos = buffer.text[buffer.pos :], len(buffer.text)
            if piece:
                out(piece)
            raise UnexpectedEnd
        yield
