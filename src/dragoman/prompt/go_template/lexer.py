"""Splits a template in Go's language into text and actions, and an action into its words.

`{{-` and `-}}` trim the white space of the text beside them, as Go defines it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

from msgspec import Struct

from dragoman.errors import InvalidValue

SPACE = " \t\r\n"
_STRING = r'"(?:[^"\\\n]|\\.)*"|`[^`]*`|\'(?:[^\'\\\n]|\\.)+\''
_ACTION = re.compile(
    rf"\{{\{{(?P<trims_before>-(?=[ \t\r\n]))?(?:[ \t\r\n]*(?P<comment>/\*.*?\*/)[ \t\r\n]*"
    rf"|(?P<code>(?:{_STRING}|(?!\}}\}}).)*?))(?P<trims_after>(?<=[ \t\r\n])-)?\}}\}}",
    re.DOTALL,
)
_WORD = re.compile(
    rf"(?P<space>[ \t\r\n]+)|(?P<string>{_STRING})|(?P<declare>:=)"
    r"|(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?))"
    r"|(?P<field>\.[^\W\d]\w*)|(?P<variable>\$(?:[^\W\d]\w*)?)|(?P<name>[^\W\d]\w*)"
    r"|(?P<sign>[.()|,=])"
)


class Word(Struct, frozen=True):
    """A word of an action; `follows_space` tells `a .b` from `a.b`."""

    kind: str
    text: str
    follows_space: bool


class ActionText(Struct, frozen=True):
    """The words of an action, and the line it is in."""

    words: list[Word]
    line: int


def fail(problem: str, line: int) -> NoReturn:
    """Raise the error of a template that cannot be used."""
    raise InvalidValue(f"`template`: {problem} (line {line}).", param="template")


def split_template(source: str) -> Iterator[str | ActionText]:
    """Yield texts and actions in their order; comments are left out."""
    position, trims = 0, False
    while True:
        start = source.find("{{", position)
        if start < 0:
            break
        line = source.count("\n", 0, start) + 1
        match = _ACTION.match(source, start)
        if match is None:
            fail("`{{` has no `}}`", line)
        text = source[position:start]
        text = text.lstrip(SPACE) if trims else text
        yield text.rstrip(SPACE) if match["trims_before"] else text
        position, trims = match.end(), bool(match["trims_after"])
        if match["comment"] is None:
            yield ActionText([*_split_action(match["code"] or "", line)], line)
    text = source[position:]
    yield text.lstrip(SPACE) if trims else text


def _split_action(code: str, line: int) -> Iterator[Word]:
    position, follows_space = 0, True
    while position < len(code):
        match = _WORD.match(code, position)
        if match is None:
            fail(f"`{code[position : position + 20]}` is not understood", line)
        kind, position = match.lastgroup or "", match.end()
        if kind != "space":
            yield Word(kind, match[0], follows_space)
        follows_space = kind == "space"
