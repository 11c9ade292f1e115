"""Reads keys and values without quotes, and keys in quotes that have no damage.

A plain word is read in one step, because most keys, numbers and constants are plain words.
"""

from __future__ import annotations

import re

from dragoman.output.arguments.damage import is_before
from dragoman.output.arguments.end_markers import EndMarkers
from dragoman.output.arguments.json_strings import quote
from dragoman.output.arguments.strings import read_word
from dragoman.output.text_buffer import (
    MarkerSet,
    Mismatch,
    ReadSteps,
    TextBuffer,
    UnexpectedEnd,
)

_WORD = r"[^\s\"',;:<>\[\]{}()\\#]"  # a character of a word; comments are not words
_WORDS = rf"{_WORD}{{1,32}}(?: {{1,4}}(?!/[/*]){_WORD}{{1,32}})"
_HALF = r"[^\s\"',:<>\[\]{}()\\][^\"',:<>\[\]{}()\\\n]{0,256}"
UNQUOTED = (  # words and a closing quote, or several words up to the end of the value or the call
    re.compile(
        rf"(?P<half>{_HALF})[\"']\s{{0,16}}[,}}\])]|(?P<words>{_WORDS}{{1,8}})\s{{0,16}}[,;}}\]<]"
    ),
    re.compile(rf"{_HALF}(?:\Z|[\"']\s{{0,16}}\Z)|{_WORDS}{{0,8}}\s{{0,16}}\Z"),
)
# a value that is certainly neither, or all of it so far
_PLAIN = r"-?\d{1,32}(?:\.\d{1,32})?|true|false|null|True|False|None"
PLAIN = re.compile(rf"(?P<word>{_PLAIN})(?:(?=[,}}\]])|(?P<part>\Z))")
PLAIN_KEY = re.compile(r"([A-Za-z_]\w{0,63})(?=:)|[A-Za-z_]\w{0,63}\Z")
QUOTED_KEY = {quote: re.compile(rf"(\w{{1,64}}){quote}|\w{{0,64}}\Z") for quote in "\"'"}
HALF_WORDS = re.compile(r"[\s\"']\Z")  # more words may follow, or the end of the value
CURLY_QUOTED = re.compile(r"[\u201c\u2018](.*)[\u201d\u2019]", re.DOTALL)
MORE_KEY = (  # more words of a key without quotes
    re.compile(r"(?P<words> {1,4}\w[\w.\- ]{0,64}?)[\"']?\s{0,16}:"),
    re.compile(r" {1,4}(?:\Z|\w[\w.\- ]{0,64}(?:\Z|[\"']?\s{0,16}\Z))"),
)
WORD_AFTER_COLON = (re.compile(r":[\w/]"), re.compile(r":?\Z"))
LETTER = re.compile(r"\w")


def read_plain_key(buffer: TextBuffer, pattern: re.Pattern[str]) -> ReadSteps[str]:
    """Read a key of letters and digits and what ends it; empty if it is something else."""
    while (match := pattern.match(buffer.text, buffer.pos)) is not None:
        if match[1] is not None:
            buffer.pos = match.end()
            return match[1]
        if buffer.has_ended:
            break
        yield
    return ""


def read_bare_word(
    buffer: TextBuffer, ends: EndMarkers, pattern: re.Pattern[str]
) -> ReadSteps[str]:
    """Read a word without quotes; a colon may be part of it, as in `12:30` and `http://`."""
    word = yield from read_word(buffer, ends, pattern)
    while word and buffer.text.startswith(":", buffer.pos):
        if not (yield from is_before(buffer, WORD_AFTER_COLON)):
            break
        buffer.pos += 1
        word += ":" + (yield from read_word(buffer, ends, pattern))
    return word.strip()


def read_bare_key(buffer: TextBuffer, ends: EndMarkers) -> ReadSteps[str]:
    """Read a key without quotes, or with a closing quote alone; a colon follows several words."""
    if not ends.may_be_word and (key := (yield from read_plain_key(buffer, PLAIN_KEY))):
        return key
    key = yield from read_word(buffer, ends, ends.word)
    if LETTER.search(key) is None:
        raise Mismatch
    if buffer.text[buffer.pos : buffer.pos + 1] == " " and (yield from is_before(buffer, MORE_KEY)):
        match = MORE_KEY[0].match(buffer.text, buffer.pos)
        assert match is not None  # noqa: S101
        key += match["words"]
        buffer.pos = match.end("words")
    if buffer.has_more and buffer.text[buffer.pos] in "\"'":
        buffer.pos += 1
    return strip_quotes(key)


def read_plain_word(buffer: TextBuffer) -> ReadSteps[str]:
    """Read a number or a constant before the end of a value; empty if it is something else."""
    while (match := PLAIN.match(buffer.text, buffer.pos)) is not None:
        if match["part"] is None:
            buffer.pos = match.end("word")
            return match["word"]
        if buffer.has_ended:
            break
        yield
    return ""


def read_unquoted(buffer: TextBuffer) -> ReadSteps[str]:
    """Read a string that has one quote or none, and return it as JSON; empty if it is one word."""
    if not (yield from is_before(buffer, UNQUOTED)):
        part = UNQUOTED[1].match(buffer.text, buffer.pos) if buffer.is_truncated else None
        words = "" if part is None else part[0].strip()
        is_half = part is not None and (" " in words or HALF_WORDS.search(part[0]) is not None)
        if is_half and PLAIN.match(f"{words},") is None:
            raise UnexpectedEnd  # half of the words is another value
        return ""
    match = UNQUOTED[0].match(buffer.text, buffer.pos)
    assert match is not None  # noqa: S101
    if match["half"] is not None:
        buffer.pos = match.end("half") + 1
        return quote(match["half"])
    buffer.pos = match.end("words")
    return quote(strip_quotes(match["words"]))


def strip_quotes(word: str, markers: MarkerSet | None = None) -> str:
    """Remove curly quotes, and the quote or marker of a string whose opening one is missing."""
    if word[-1:].isalnum():
        return word
    if (match := CURLY_QUOTED.fullmatch(word)) is not None:
        return match[1]
    for close in ('"', "'") if markers is None else markers.markers:
        if word.endswith(close) and word.count(close) == 1:
            return word.removesuffix(close)
    return word
