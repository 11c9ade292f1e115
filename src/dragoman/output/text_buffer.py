"""The text of an answer as it comes in, and how to wait for more of it.

Every part of the parser is a generator that reads from one `Source` and yields when it has used up
what is there. It is then resumed with more text, or with `ended` set. So a reader is written as if
the whole text were there, and there is no second way to read a stream.

What was read can be kept until it is clear what it is: `keep` marks a place, `kept` is the text
from there on. Pushing more text costs the length of that text and of the tail not yet read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from dragoman.output.spec import GAP

T = TypeVar("T")
Reading = Generator[None, None, T]

SPACE = re.compile(r"\s*")
NESTED = 100  # letters of a mark, as deep as a pattern may nest
LONGEST_NAME = 256  # characters; nothing longer is a name, a key or a header


class Cut(Exception):
    """The text ended in the middle of something."""


class Refused(Exception):
    """What was read is not what it seemed to be."""


class Source:
    """A text that comes in pieces."""

    __slots__ = (
        "_beyond",
        "_fence",
        "_from",
        "_kept",
        "_start",
        "at",
        "base",
        "ended",
        "text",
        "walled",
    )

    def __init__(self) -> None:
        self.text = ""
        self.at = 0  # what comes next
        self.base = 0  # where `text` begins in the whole
        self.ended = False
        self._kept: list[str] | None = None
        self._from = 0
        self._start = 0
        self._fence: Marks | None = None
        self._beyond = ""
        self.walled = False  # whether the text ends for now because a mark of the fence follows

    def push(self, piece: str) -> None:
        """More text."""
        if self._fence is not None:
            if self.walled:
                self._beyond += piece
                return
            piece, self._beyond = self._beyond + piece, ""
        at = self.at
        if self._kept is not None:
            self._kept.append(self.text[self._from : at])
            self._from = 0
        self.base += at
        self.text = self.text[at:] + piece if at < len(self.text) else piece
        self.at = 0
        if self._fence is not None:
            self._wall()

    def fence(self, marks: Marks) -> None:
        """Nothing past one of the marks is to be read until `lift`: it is as if the text ended."""
        self._fence = marks
        self._wall()

    def _wall(self) -> None:
        assert self._fence is not None  # noqa: S101
        start, _, number = self._fence.search(self)
        self.text, self._beyond = self.text[:start], self.text[start:]
        self.walled = number >= 0
        self.ended = self.ended or self.walled

    def lift(self) -> None:
        """Read on past the fence."""
        self.ended = self.ended and not self.walled
        self.text += self._beyond
        self._fence, self._beyond, self.walled = None, "", False

    def finish(self) -> None:
        """No more text comes."""
        self.ended = True
        if self._fence is not None and not self.walled:
            self.text += self._beyond
            self._beyond = ""

    def keep(self) -> None:
        """Keep what is read from here on."""
        self._kept, self._from, self._start = [], self.at, self.base + self.at

    def kept(self) -> tuple[str, int]:
        """What was read since `keep`, and where it began. Nothing is kept any longer."""
        if self._kept is None:
            return "", self.base + self.at
        text = "".join([*self._kept, self.text[self._from : self.at]])
        self._kept = None
        return text, self._start

    def so_far(self) -> str:
        """What was read since `keep`; it is kept on."""
        return "".join([*(self._kept or ()), self.text[self._from : self.at]])

    def forget(self) -> None:
        self._kept = None

    @property
    def keeping(self) -> bool:
        return self._kept is not None

    @property
    def more(self) -> bool:
        """Whether there is text to read now."""
        return self.at < len(self.text)


class Marks:
    """Finds the first of several marks, or a tail that may still become one."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.marks = tuple(dict.fromkeys(mark for mark in marks if mark))
        self.first = frozenset(mark[0] for mark in self.marks)
        self._known = {mark.replace(GAP, ""): at for at, mark in enumerate(self.marks)}
        self._loose = any(GAP in mark for mark in self.marks)
        self._growing = {
            self._known[one]
            for one in self._known
            for other in self._known
            if other != one and other.startswith(one)
        }
        self._each = [re.compile(_pattern(mark)) for mark in self.marks] if self._loose else []
        ordered = sorted(self.marks, key=len, reverse=True)
        whole = [_pattern(mark) for mark in ordered]
        parts = [part for mark in ordered if (part := _unfinished(mark))]
        # a tail that may become a longer mark comes before a shorter mark that is there already
        growing = {self.marks[at] for at in self._growing}
        sure = [_pattern(mark) for mark in ordered if mark not in growing]
        live = re.compile("|".join(sure + parts + whole) or r"(?!)")
        last = re.compile("|".join(whole) or r"(?!)")
        self._search = {False: live.search, True: last.search}
        self._match = {False: live.match, True: last.match}

    def search(self, src: Source) -> tuple[int, int, int]:
        """Start, end and number of the next mark; -1 for a tail, or none at the text's end."""
        return self._told(self._search[src.ended](src.text, src.at), len(src.text), src)

    def match(self, src: Source) -> tuple[int, int, int]:
        """The same for a mark that stands right here; a start of -1 says that none does."""
        if src.at >= len(src.text):
            return src.at, src.at, -1
        return self._told(self._match[src.ended](src.text, src.at), -1, src)

    def _told(self, found: re.Match[str] | None, missing: int, src: Source) -> tuple[int, int, int]:
        if found is None:
            return missing, missing, -1
        said = found.group()
        start, end = found.span()
        number = self._loosely(said) if self._loose else self._known.get(said, -1)
        if number in self._growing and end == len(src.text) and not src.ended:
            return start, end, -1  # it may become a longer one
        return start, end, number

    def _loosely(self, said: str) -> int:
        return next((at for at, one in enumerate(self._each) if one.fullmatch(said)), -1)


def _atoms(mark: str) -> list[str]:
    return [r"\s{0,16}" if letter == GAP else re.escape(letter) for letter in mark]


def _pattern(mark: str) -> str:
    return "".join(_atoms(mark))


def _unfinished(mark: str) -> str:
    """A pattern for a beginning of the mark that stands at the end of the text."""
    *atoms, _ = _atoms(mark)
    if len(atoms) > NESTED:
        return "(?:" + "|".join("".join(atoms[:at]) for at in range(len(atoms), 0, -1)) + r")\Z"
    pattern = ""
    for atom in reversed(atoms):
        pattern = rf"{atom}(?:\Z|{pattern})" if pattern else rf"{atom}\Z"
    return pattern


def last_of(text: str, marks: Sequence[str]) -> tuple[int, int]:
    """Where the last of the marks in a text begins and ends, or -1."""
    spans = [(at, at + len(mark)) for mark in marks if (at := text.rfind(mark)) >= 0]
    for mark in marks:
        if GAP in mark:
            spans += [found.span() for found in re.finditer(_pattern(mark), text)]
    return max(spans, default=(-1, -1))


class Sieve:
    """Leaves marks out of a text."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = Marks(marks)
        self._src = Source()

    def feed(self, text: str) -> str:
        self._src.push(text)
        return self._rest()

    def close(self) -> str:
        self._src.ended = True
        return self._rest() + self._src.text[self._src.at :]

    def _rest(self) -> str:
        src, parts = self._src, []
        while True:
            start, end, number = self._marks.search(src)
            parts.append(src.text[src.at : start])
            src.at = end if number >= 0 else start
            if number < 0:
                return "".join(parts)


def skip(src: Source, pattern: re.Pattern[str] = SPACE) -> Reading[None]:
    """Read over white space, or what else the pattern says, to the next thing there is."""
    while True:
        found = pattern.match(src.text, src.at)
        if found is not None:
            src.at = found.end()
        if src.at < len(src.text) or src.ended:
            return
        yield


def look(src: Source) -> Reading[str]:
    """The next character, not read yet; empty at the end."""
    while src.at >= len(src.text):
        if src.ended:
            return ""
        yield
    return src.text[src.at]


def here(src: Source, marks: Marks) -> Reading[int]:
    """Read the mark that stands here: its number, or -1 if none does."""
    while True:
        start, end, number = marks.match(src)
        if number >= 0:
            src.at = end
            return number
        if start < 0 or src.ended:
            return -1
        yield


def peek(src: Source, which: Marks) -> Reading[bool]:
    """Whether one of the marks stands here; it is not read."""
    while True:
        start, _, number = which.match(src)
        if number >= 0:
            return True
        if start < 0 or src.ended:
            return False
        yield


def closed(src: Source, marks: Marks) -> Reading[bool]:
    """Read the mark that closes something, if it is here; at the end a part of it will do."""
    while True:
        start, end, number = marks.match(src)
        if number >= 0:
            src.at = end
            return True
        if src.ended:
            rest = src.text[src.at : src.at + LONGEST_NAME]
            part = len(rest) > 1 and any(
                mark.replace(GAP, "").startswith(rest) for mark in marks.marks
            )
            src.at += len(rest) if part else 0
            return part
        if start < 0:
            return False
        yield


def until(src: Source, marks: Marks, longest: int = LONGEST_NAME) -> Reading[tuple[str, str, int]]:
    """Read a short text up to a mark: the text, the mark, and where the mark ends.

    The mark itself is not read. Refuses what is too long; may be cut.
    """
    parts: list[str] = []
    size = 0
    while True:
        start, end, number = marks.search(src)
        room = longest - size
        if start - src.at > room:  # the same place wherever the text was cut
            src.at += room
            raise Refused
        parts.append(src.text[src.at : start])
        size += start - src.at
        src.at = start
        if number >= 0:
            return "".join(parts), marks.marks[number], end
        if src.ended:
            raise Cut
        yield


def up_to(src: Source, marks: Marks, out: Callable[[str], object]) -> Reading[tuple[str, int]]:
    """Hand out all text up to a mark; the mark, which is not read, and where it ends."""
    while True:
        start, end, number = marks.search(src)
        piece, src.at = src.text[src.at : start], start
        if piece:
            out(piece)
        if number >= 0:
            return marks.marks[number], end
        if src.ended:
            piece, src.at = src.text[src.at :], len(src.text)
            if piece:
                out(piece)
            raise Cut
        yield
