"""Recognises damaged arguments by the text around the damage.

Models write quotes that are doubled, missing, or not escaped inside a string; lists that are not
closed; closing tags of another name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dragoman.output.arguments.end_markers import MAX_LOOKAHEAD, EndMarkers, MarkerFinder
from dragoman.output.arguments.json_strings import escape
from dragoman.output.arguments.strings import Output, read_quoted
from dragoman.output.rules import ENDS_OF_TURN
from dragoman.output.text_buffer import (
    INVISIBLE,
    MarkerSet,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
    read_marker,
)

MAX_KEY = 64  # characters of a key that may appear in a list that was not closed
MAX_SPACE = 32  # characters of white space after a quote
CLOSERS = frozenset(",}]")  # characters that usually follow a string
COMMAS = ",;\uff0c\uff1b"  # characters between values, also those of full width
COLONS = ":=\uff1a"  # characters after a key
_DOUBLED_CLOSING = {quote: re.compile(rf"{quote}\s{{0,{MAX_SPACE}}}[,}}\]):]") for quote in "\"'"}
# text that shows what damaged text before it means, and the same for a part of that text
KEY = (  # a key and a colon
    re.compile(r"[\"'][^\"'\\]{1,64}[\"']\s{0,16}:"),
    re.compile(r"[\"'](?:\Z|[^\"'\\]{1,64}(?:\Z|[\"']\s{0,16}\Z))"),
)
_KEY = r"[\"'](?P<key>[^\"'\\]{1,64})[\"']\s{0,16}:"
_KEY_PART = r"\Z|[\"'](?:\Z|[^\"'\\]{1,64}(?:\Z|[\"']\s{0,16}\Z))"
MEMBER = (  # a comma, a key and a colon
    re.compile(rf"\s{{0,16}},\s{{0,16}}{_KEY}"),
    re.compile(rf"\s{{0,16}}(?:\Z|,\s{{0,16}}(?:{_KEY_PART}))"),
)
NEXT_MEMBER = (  # the same, if the comma may be missing
    re.compile(rf"\s{{0,16}}(?:,\s{{0,16}})?{_KEY}"),
    re.compile(rf"\s{{0,16}}(?:,\s{{0,16}})?(?:{_KEY_PART})"),
)
KEY_WITH_OTHER_QUOTE = (  # the rest of a key whose opening quote is a single one
    re.compile(r"'[\w.\-]{1,64}\"\s{0,16}:"),
    re.compile(r"'(?:\Z|[\w.\-]{1,64}(?:\Z|\"\s{0,16}\Z))"),
)
KEY_AFTER_QUOTE = (  # the rest of a key and a colon, in an object whose last string is not closed
    re.compile(r"\s{0,16}[\w.\- ]{1,64}[\"']\s{0,16}:"),
    re.compile(r"\s{0,16}(?:\Z|[\w.\- ]{1,64}(?:\Z|[\"']\s{0,16}\Z))"),
)
OBJECT_IN_QUOTES = (  # a quote, and an object whose quotes are not escaped
    re.compile(r"([\"'])\s{0,16}\{\s{0,16}\1\w"),
    re.compile(r"([\"'])\s{0,16}(?:\Z|\{\s{0,16}(?:\Z|\1\Z))"),
)
LIST_END = (re.compile(r"\s{0,16}\]"), re.compile(r"\s{0,16}\Z"))
COMMENT = (  # up to the end of the line, or between its markers
    re.compile(r"(?://|# )[^\n<]{0,256}\n|/\*[^*<]{0,256}\*/"),
    re.compile(r"(?:/|/?/[^\n<]{0,256}|#|# [^\n<]{0,256}|/\*[^*<]{0,256}\*?)\Z"),
)
COMMENT_STARTS = frozenset("/#")
ATTRIBUTES = re.compile(r"""(?<=["'])(?:\s+[\w:.\-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'))+\Z""")
MAX_BETWEEN = 256  # characters of text between two arguments
TURN_ENDS = MarkerSet(ENDS_OF_TURN)
# what may stand where JSON has white space: comments, tokens that end a turn, and characters that
# JSON does not allow
ODD_SPACES = COMMENT_STARTS | {char for char in map(chr, range(0x3001)) if char.isspace()}
ODD_SPACES = (ODD_SPACES | {*INVISIBLE} | TURN_ENDS.first_chars) - {*" \t\r\n"}
WRONG_CLOSES = ("</", "< /", "<\\/")  # start a closing tag, perhaps of another name
WRONG_CLOSE = re.compile(r"<[ \\]?/")
WRONG_TAG = (  # and the same for a part of it; a tag without its end is one word
    re.compile(
        r"<[ \\]?/(?:[^<>\n]{0,48}\s{0,4}>\s{0,16}|[^\s<>]{1,48}(?: [^\s<>]{1,32})?\s{0,16}(?=<))"
    ),
    re.compile(r"<[ \\]?(?:\Z|/(?:[^<>\n]{0,48}\s{0,16}\Z|[^<>\n]{0,48}\s{0,4}>\s{0,16}\Z))"),
)
StringReader: TypeAlias = Callable[[TextBuffer, EndMarkers, str, Output], ReadSteps[None]]
_NEXT = re.compile(rf"\s{{0,{MAX_SPACE}}}(\S)?")


def is_before(
    buffer: TextBuffer, lookahead: tuple[re.Pattern[str], re.Pattern[str]]
) -> ReadSteps[bool]:
    """Whether text of this pattern follows; the second pattern is for a part of it."""
    whole, part = lookahead
    while True:
        if whole.match(buffer.text, buffer.pos) is not None:
            return True
        if buffer.has_ended or part.match(buffer.text, buffer.pos) is None:
            return False
        yield


def find_next_key(buffer: TextBuffer) -> ReadSteps[str]:
    """Return the key of the member that follows, with or without a comma; empty if none does."""
    if not (yield from is_before(buffer, NEXT_MEMBER)):
        return ""
    match = NEXT_MEMBER[0].match(buffer.text, buffer.pos)
    assert match is not None  # noqa: S101
    return match["key"]


def skip_other_quote(buffer: TextBuffer) -> ReadSteps[bool]:
    """Skip the opening quote of a key if another quote closes the key."""
    is_other = buffer.text[buffer.pos] == "'" and (
        yield from is_before(buffer, KEY_WITH_OTHER_QUOTE)
    )
    buffer.pos += is_other
    return is_other


def is_at_key(buffer: TextBuffer) -> ReadSteps[bool]:
    """Whether a key in quotes and a colon follow."""
    if (yield from is_before(buffer, KEY)):
        return True
    if buffer.is_truncated and KEY[1].match(buffer.text, buffer.pos) is not None:
        raise UnexpectedEnd  # it may be a key or a value
    return False


def skip_comment(buffer: TextBuffer) -> ReadSteps[bool]:
    """Skip a comment, which JSON does not have and models write; False if there is none."""
    if not (yield from is_before(buffer, COMMENT)):
        if buffer.is_truncated and COMMENT[1].match(buffer.text, buffer.pos) is not None:
            raise UnexpectedEnd
        return False
    match = COMMENT[0].match(buffer.text, buffer.pos)
    assert match is not None  # noqa: S101
    buffer.pos = match.end()
    return True


def skip_odd_space(buffer: TextBuffer, stack: Sequence[str]) -> ReadSteps[bool]:
    """Skip one of `ODD_SPACES`; comments and tokens only inside an object or list."""
    if buffer.text[buffer.pos] in COMMENT_STARTS:
        return bool(stack) and (yield from skip_comment(buffer))
    if buffer.text[buffer.pos] in TURN_ENDS.first_chars:
        return bool(stack) and (yield from read_marker(buffer, TURN_ENDS)) >= 0
    buffer.pos += 1
    return True


def read_more_string(
    buffer: TextBuffer, ends: EndMarkers, quote: str, out: Output
) -> ReadSteps[None]:
    """Read on after a quote that words follow: it is part of the string."""
    while buffer.text[buffer.pos : buffer.pos + 1] not in CLOSERS and (
        yield from _is_inside_string(buffer)
    ):
        out(escape(quote))
        yield from read_quoted(buffer, ends, quote, out)


def _is_inside_string(buffer: TextBuffer) -> ReadSteps[bool]:
    """Whether the quote before this position belongs to the string, but was not escaped."""
    while True:
        match = _NEXT.match(buffer.text, buffer.pos)
        assert match is not None  # noqa: S101  # it matches the empty text
        if match[1] is not None or buffer.has_ended or len(match[0]) == MAX_SPACE:
            break
        yield
    if match[1] is None or not match[1].isalnum():
        return False
    return not (yield from is_before(buffer, KEY_AFTER_QUOTE))


def is_before_other(buffer: TextBuffer, char: str) -> bool:
    """Whether another character than this one follows, and has arrived."""
    pos = buffer.pos
    return pos < len(buffer.text) and buffer.text[pos] != char


def choose_reader(buffer: TextBuffer, quote: str) -> ReadSteps[StringReader]:
    """Skip quotes after the first one of a string; return its reader: three quotes have their own.

    A second quote is doubled if text follows it, so that the string is not empty.
    """
    while True:
        text = buffer.text[buffer.pos : buffer.pos + 3]
        if text and text[0] != quote:
            return read_quoted
        quotes = len(text) - len(text.lstrip(quote))
        if quotes < len(text) or len(text) == 3 or buffer.has_ended:
            break
        yield
    if buffer.is_truncated and 0 < quotes == len(text):
        raise UnexpectedEnd  # more quotes may follow
    if quotes == 1 and text[1:2].isalnum():
        buffer.pos += 1
    if quotes < 2 or not text[2:] or text[2] in ",}])":
        return read_quoted
    buffer.pos += 2
    return read_triple_quoted


def read_triple_quoted(
    buffer: TextBuffer, ends: EndMarkers, quote: str, out: Output
) -> ReadSteps[None]:
    """Read a string up to three quotes."""
    while True:
        yield from read_quoted(buffer, ends, quote, out)
        while len(buffer.text) - buffer.pos < 2 and not buffer.has_ended:
            yield
        if buffer.text.startswith(quote * 2, buffer.pos):
            buffer.pos += 2
            return
        if buffer.is_truncated and buffer.text[buffer.pos :] in ("", quote):
            raise UnexpectedEnd
        out(escape(quote))


def skip_stray_quote(buffer: TextBuffer) -> ReadSteps[str]:
    """Skip a quote before an object, which is not a string; return it, or nothing."""
    if not (yield from is_before(buffer, OBJECT_IN_QUOTES)):
        return ""
    match = OBJECT_IN_QUOTES[0].match(buffer.text, buffer.pos)
    assert match is not None  # noqa: S101
    buffer.pos = buffer.text.index("{", buffer.pos)
    return match[1]


def skip_doubled_closing(buffer: TextBuffer, quote: str) -> ReadSteps[None]:
    """Skip a second closing quote: one after which a value can be over."""
    while True:
        match = _DOUBLED_CLOSING[quote].match(buffer.text, buffer.pos)
        if match is not None:
            buffer.pos += 1
            return
        rest = buffer.text[buffer.pos : buffer.pos + MAX_SPACE]
        is_undecided = not rest or (rest[0] == quote and not rest[1:].strip())
        if buffer.is_truncated and rest and is_undecided:
            raise UnexpectedEnd
        if buffer.has_ended or not is_undecided or len(rest) == MAX_SPACE:
            return
        yield


class ElementText:
    """The text of a string, held back up to a length: it may turn out to be a key."""

    def __init__(self, start: Callable[[], None], out: Output) -> None:
        self._start = start
        self._out = out
        self._parts: list[str] = []
        self._size = 0
        self.is_flushed = False

    @property
    def quoted(self) -> str:
        return f'"{"".join(self._parts)}"'

    def add(self, text: str) -> None:
        if self.is_flushed:
            self._out(text)
            return
        self._parts.append(text)
        self._size += len(text)
        if self._size > MAX_KEY:
            self.flush()

    def flush(self) -> None:
        if not self.is_flushed and self._size:
            self.is_flushed = True
            self._start()
            self._out("".join(self._parts))


def match_name(pattern: str, text: str) -> re.Match[str] | None:
    """Match the name of a tool or a key in a tag; attributes after one in quotes are ignored."""
    match = re.fullmatch(pattern, text)
    if match is not None or (attributes := ATTRIBUTES.search(text)) is None:
        return match
    return re.fullmatch(pattern, text[: attributes.start()])


def skip_to_next_key(buffer: TextBuffer, keys: MarkerSet, ends: EndMarkers) -> ReadSteps[str]:
    """Skip the text between two arguments and return it; empty if no other argument follows."""
    markers = ends.join(keys)
    while True:
        start, _, index = markers.search(buffer)
        if start - buffer.pos > MAX_BETWEEN or index >= len(keys.markers):
            return ""
        if index >= 0:
            text, buffer.pos = buffer.text[buffer.pos : start], start
            return text
        if buffer.has_ended:
            return ""
        yield


def skip_wrong_close(
    buffer: TextBuffer, next_markers: MarkerSet, finder: MarkerFinder
) -> ReadSteps[bool]:
    """Skip a closing tag of another name; False if it is part of a value that is closed later."""
    whole, part = WRONG_TAG
    while True:
        match = whole.match(buffer.text, buffer.pos)
        is_part = part.match(buffer.text, buffer.pos) is not None
        if match is not None and not is_part:
            start, _, index = next_markers.match_from(buffer, match.end())
            is_closed, position = finder.find(buffer, match.end())
            is_far = position - buffer.pos > MAX_LOOKAHEAD
            if index >= 0 and (is_closed is False or (is_closed is None and buffer.has_ended)):
                buffer.pos = match.end()
                return True
            is_cut = buffer.is_truncated and next_markers.is_cut_at(buffer, match.end())
            if is_closed or is_far or (start < 0 and not is_cut):
                return False
        elif not is_part:
            return False
        if buffer.is_truncated:
            raise UnexpectedEnd
        if buffer.has_ended:
            return False
        yield
