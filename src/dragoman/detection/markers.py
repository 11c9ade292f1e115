"""The literal markers of a format, and how many of them stand in a text."""

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

Group = tuple[str, ...]  # spellings of one marker


@lru_cache(maxsize=4096)
def _pattern(marker: str) -> re.Pattern[str]:
    return re.compile(r"\s*".join(map(re.escape, marker.split(GAP))))


def contains_marker(marker: str, text: str) -> bool:
    """Whether the marker is in the text, whatever white space it allows."""
    return _pattern(marker).search(text) is not None if GAP in marker else marker in text


def find_last(markers: Iterable[str], text: str) -> int:
    """Where the last of several markers stands; -1 if none does."""
    starts = [match.start() for marker in markers for match in _pattern(marker).finditer(text)]
    return max(starts, default=-1)


def contains_any_marker(markers: Iterable[str], text: str) -> bool:
    return any(contains_marker(marker, text) for marker in markers if marker.strip())


def call_openers(tools: ToolFormat) -> Group:
    """The markers that a call may begin with."""
    header = tools.header.open + tools.header.end if tools.header else ()
    return tuple(
        marker for marker in (*tools.section.open, *tools.call.open, *header) if marker.strip()
    )


def allows_unmarked_calls(tools: ToolFormat) -> bool:
    """Whether a call may stand without any marker."""
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
    """Without markers that are in every text anyway."""
    kept = (tuple(marker for marker in group if len(marker.strip()) > 1) for group in groups)
    return tuple(group for group in kept if group)


def measure_coverage(
    of: ToolFormat | ReasoningFormat, has: Callable[[str], bool]
) -> tuple[int, int]:
    """How many of a format's markers are missing somewhere, and how long those are that are not."""
    match = [_measure_groups(groups, has) for groups in _all_groups(of)]
    ways = [(missing, length - at) for at, (missing, length) in enumerate(match)]
    return min(ways, key=lambda way: (way[0], -way[1]), default=(0, 0))  # the usual body first


def make_marker_test(text: str) -> Callable[[str], bool]:
    return lambda marker: contains_marker(marker, text)


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
        match = [2 * len(marker) - bool(at) for at, marker in enumerate(group) if has(marker)]
        missing += not match
        length += max(match, default=0)  # the usual spelling counts a little more
    return missing, length


def match_hints(of: ToolFormat | ReasoningFormat, text: str) -> int:
    """Whether the text has what else gives this format away: 1 yes, -1 no, 0 there is nothing."""
    if not of.template_hints:
        return 0
    return 1 if contains_any_marker(of.template_hints, text) else -1
