"""The literal markers of a format, and how many of them a text contains."""

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
    """Whether the text contains the marker, with any white space that its gaps allow."""
    return _pattern(marker).search(text) is not None if GAP in marker else marker in text


def find_last(markers: Iterable[str], text: str) -> int:
    """Return the position of the last of several markers, or -1."""
    starts = [match.start() for marker in markers for match in _pattern(marker).finditer(text)]
    return max(starts, default=-1)


def contains_any_marker(markers: Iterable[str], text: str) -> bool:
    return any(contains_marker(marker, text) for marker in markers if marker.strip())


def call_openers(tools: ToolFormat) -> Group:
    """Return the markers that can start a call."""
    header = tools.header.open + tools.header.end if tools.header else ()
    return tuple(
        marker for marker in (*tools.section.open, *tools.call.open, *header) if marker.strip()
    )


def allows_unmarked_calls(tools: ToolFormat) -> bool:
    """Whether a call may have no marker."""
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
    """Drop markers that any text may contain."""
    groups = (tuple(marker for marker in group if len(marker.strip()) > 1) for group in groups)
    return tuple(group for group in groups if group)


def measure_coverage(
    format_: ToolFormat | ReasoningFormat, has: Callable[[str], bool]
) -> tuple[int, int]:
    """Count a format's missing markers and the length of the present ones."""
    match = [_measure_groups(groups, has) for groups in _all_groups(format_)]
    ranked = [(missing, length - at) for at, (missing, length) in enumerate(match)]
    return min(
        ranked, key=lambda way: (way[0], -way[1]), default=(0, 0)
    )  # the most common body first


def make_marker_test(text: str) -> Callable[[str], bool]:
    return lambda marker: contains_marker(marker, text)


def _all_groups(format_: ToolFormat | ReasoningFormat) -> Sequence[tuple[Group, ...]]:
    if isinstance(format_, ReasoningFormat):
        return [
            _drop_trivial(
                [
                    format_.open,
                    format_.close,
                    format_.dropped,
                    format_.answer_wrapper.open,
                    format_.answer_wrapper.close,
                    *_header_markers(format_.header),
                ]
            )
        ]
    frame = [
        format_.section.open,
        format_.section.close,
        format_.call.open,
        format_.call.close,
        format_.dropped,
        *_header_markers(format_.header),
    ]
    return [_drop_trivial([*frame, *_body_markers(body)]) for body in format_.bodies]


def _measure_groups(groups: Iterable[Group], has: Callable[[str], bool]) -> tuple[int, int]:
    missing = length = 0
    for group in groups:
        match = [2 * len(marker) - bool(at) for at, marker in enumerate(group) if has(marker)]
        missing += not match
        length += max(match, default=0)  # the most common spelling counts a little more
    return missing, length


def match_hints(format_: ToolFormat | ReasoningFormat, text: str) -> int:
    """Return 1 if the text contains a hint of the format, -1 if not, 0 without hints."""
    if not format_.template_hints:
        return 0
    return 1 if contains_any_marker(format_.template_hints, text) else -1
