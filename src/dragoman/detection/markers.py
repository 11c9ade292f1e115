"""The literal marks of a format, and how many of them stand in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from dragoman.output.spec import (
    GAP,
    CallBody,
    MessageHeader,
    NamedObject,
    NestedElements,
    ReasoningFormat,
    TaggedArguments,
    ToolFormat,
)

Group = tuple[str, ...]  # spellings of one mark


@lru_cache(maxsize=4096)
def _pattern(mark: str) -> re.Pattern[str]:
    return re.compile(r"\s*".join(map(re.escape, mark.split(GAP))))


def contains_marker(mark: str, text: str) -> bool:
    """Whether the mark is in the text, whatever white space it allows."""
    return _pattern(mark).search(text) is not None if GAP in mark else mark in text


def find_last(marks: Iterable[str], text: str) -> int:
    """Where the last of several marks stands; -1 if none does."""
    starts = [found.start() for mark in marks for found in _pattern(mark).finditer(text)]
    return max(starts, default=-1)


def contains_any_marker(marks: Iterable[str], text: str) -> bool:
    return any(contains_marker(mark, text) for mark in marks if mark.strip())


def call_openers(tools: ToolFormat) -> Group:
    """The marks that a call may begin with."""
    header = tools.header.open + tools.header.end if tools.header else ()
    return tuple(mark for mark in (*tools.section.open, *tools.call.open, *header) if mark.strip())


def allows_unmarked_calls(tools: ToolFormat) -> bool:
    """Whether a call may stand without any mark."""
    return bool(tools.unmarked_starts) or tools.unmarked_at_start or not call_openers(tools)


def _body_markers(body: CallBody) -> list[Group]:
    if isinstance(body, NamedObject):
        return [body.name_ends, body.fence, body.string_markers]
    if isinstance(body, TaggedArguments):
        pairs = (body.key, body.value)
        return [body.name_ends, *(group for pair in pairs for group in (pair.open, pair.close))]
    return [(body.prefix,)] if isinstance(body, NestedElements) else []


def _header_markers(header: MessageHeader | None) -> list[Group]:
    return [header.open, header.end, header.close] if header else []


def _drop_trivial(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Without marks that are in every text anyway."""
    kept = (tuple(mark for mark in group if len(mark.strip()) > 1) for group in groups)
    return tuple(group for group in kept if group)


def measure_coverage(
    of: ToolFormat | ReasoningFormat, has: Callable[[str], bool]
) -> tuple[int, int]:
    """How many of a format's marks are missing somewhere, and how long those are that are not."""
    found = [_measure_groups(groups, has) for groups in _all_groups(of)]
    ways = [(missing, length - at) for at, (missing, length) in enumerate(found)]
    return min(ways, key=lambda way: (way[0], -way[1]), default=(0, 0))  # the usual body first


def make_marker_test(text: str) -> Callable[[str], bool]:
    return lambda mark: contains_marker(mark, text)


def _all_groups(of: ToolFormat | ReasoningFormat) -> Sequence[tuple[Group, ...]]:
    if isinstance(of, ReasoningFormat):
        return [
            _drop_trivial(
                [
                    of.open,
                    of.close,
                    of.dropped,
                    of.answer_wrapper.open,
                    of.answer_wrapper.close,
                    *_header_markers(of.header),
                ]
            )
        ]
    frame = [
        of.section.open,
        of.section.close,
        of.call.open,
        of.call.close,
        of.dropped,
        *_header_markers(of.header),
    ]
    return [_drop_trivial([*frame, *_body_markers(body)]) for body in of.bodies]


def _measure_groups(groups: Iterable[Group], has: Callable[[str], bool]) -> tuple[int, int]:
    missing = length = 0
    for group in groups:
        found = [2 * len(mark) - bool(at) for at, mark in enumerate(group) if has(mark)]
        missing += not found
        length += max(found, default=0)  # the usual spelling counts a little more
    return missing, length


def match_hints(of: ToolFormat | ReasoningFormat, text: str) -> int:
    """Whether the text has what else gives this format away: 1 yes, -1 no, 0 there is nothing."""
    if not of.template_hints:
        return 0
    return 1 if contains_any_marker(of.template_hints, text) else -1
