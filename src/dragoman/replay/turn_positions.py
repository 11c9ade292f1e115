"""Where the turns of a chat stand in its prompt.

A turn is given to the template with a sign in each of its texts: code points that no text has,
around a number. In the prompt it reaches from a special token before its first sign up to one after
its last sign. Texts of clients never have the code point (see `marks`), so no sign is forged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from dragoman.prompt.special_tokens import POSITION

NEAR = 8  # special tokens of one kind between the beginning of a turn and its first words
_WRITTEN = rf"(?:{POSITION}|\\[uU][fF][dD][dD]2)"  # as it is, or as `tojson` and `repr` write it
_SIGN = re.compile(rf"{_WRITTEN}(\d+){_WRITTEN}")


class TurnOpening(Struct, frozen=True):
    """What a turn begins with: a special token, and the text up to the next one, if there is one.

    Text that no special token ends is the beginning of an answer, and may be another later.
    """

    mark: str
    text: str = ""


class TurnEndings(Struct, frozen=True):
    """What a turn ends with: special tokens that it ends before, and those that it ends after."""

    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()


class TurnSpan(Struct, frozen=True):
    """From one piece of a prompt up to another."""

    start: int
    end: int
    number: int


def insert_markers(message: dict[str, Any], number: int, thoughts: Sequence[str]) -> None:
    """Put the sign of a turn into every text of it that a template may write."""
    sign = f"{POSITION}{number}{POSITION}"
    for name in thoughts:
        if message.get(name):
            message[name] += sign
    for call in message.get("tool_calls") or ():
        function = call["function"]
        function["arguments"] = _signed(function["arguments"], sign)
    content, alone = message.get("content"), not message.get("tool_calls")
    if isinstance(content, list):
        for part in content:
            kind = "thinking" if "thinking" in part else "text"
            if part[kind] or (kind == "text" and alone):
                part[kind] += sign
    elif content or alone:
        message["content"] = (content or "") + sign


def _signed(arguments: Any, sign: str) -> Any:
    """Arguments with one more before them, which is the sign."""
    if isinstance(arguments, dict):
        return {sign: sign, **arguments}
    text = arguments.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return arguments + sign
    rest = text[1:].lstrip()
    return f'{{"{sign}": "{sign}"{"" if rest == "}" else ", "}{rest}'


def find_markers(pieces: Sequence[str]) -> dict[int, tuple[int, int]]:
    """The first and the last piece that each sign is in."""
    found: dict[int, tuple[int, int]] = {}
    for at in range(0, len(pieces), 2):
        piece = pieces[at]
        if POSITION not in piece and "\\" not in piece:
            continue
        for match in _SIGN.finditer(piece):
            number = int(match[1])
            found[number] = (found.get(number, (at, at))[0], at)
    return found


def locate_turns(
    pieces: Sequence[str], openers: Sequence[TurnOpening], ends: TurnEndings
) -> tuple[list[TurnSpan], set[int]]:
    """The places of all turns, in order, and the numbers of those that have none.

    A turn without a place takes none from another.
    """
    found: list[TurnSpan] = []
    failed = set(range(len(openers)))
    spans = sorted((first, last, number) for number, (first, last) in find_markers(pieces).items())
    floor = 0
    for at, (first, last, number) in enumerate(spans):
        ceiling = spans[at + 1][0] if at + 1 < len(spans) else len(pieces)
        start = _start(pieces, range(first - 1, floor - 1, -2), openers[number])
        end = _end(pieces, range(last + 1, ceiling, 2), ends)
        floor = last + 1
        if start is not None and end is not None:
            found.append(TurnSpan(start, end, number))
            failed.discard(number)
            floor = end
    return found, failed


def _start(pieces: Sequence[str], where: range, opener: TurnOpening) -> int | None:
    """The nearest special token that is followed as the opener is; it is one of the nearest."""
    found = (at for at in where if at > 0 and pieces[at] == opener.mark)
    text = opener.text.strip()
    near = islice(found, NEAR)
    return next((at for at in near if pieces[at + 1].strip().startswith(text)), None)


def _end(pieces: Sequence[str], where: range, ends: TurnEndings) -> int | None:
    for at in where:
        if pieces[at] in ends.before:
            return at
        if pieces[at] in ends.after:
            return at + 1
    return None
