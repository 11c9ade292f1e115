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

Group = tuple[str, ...]  # the spellings of one marker


@lru_cache(maxsize=4096)
def _write_pattern(marker: str) -> re.Pattern[str]:
    return re.compile(r"\s*".join(map(re.escape, marker.split(GAP))))


def contains_marker(marker: str, text: str) -> bool:
    """Whether the text contains the marker, with any white space that its gaps allow."""
    return _write_pattern(marker).search(text) is not None if GAP in marker else marker in text


def contains_any_marker(markers: Iterable[str], text: str) -> bool:
    return any(contains_marker(marker, text) for marker in markers if marker.strip())


def get_call_openers(tools: ToolFormat) -> Group:
    """Return the markers that can start a call."""
    header = tools.header.open + tools.header.end if tools.header else ()
    return tuple(
        marker for marker in (*tools.section.open, *tools.call.open, *header) if marker.strip()
    )


def allows_unmarked_calls(tools: ToolFormat) -> bool:
    """Whether a call may start without a marker."""
    return bool(tools.unmarked_starts) or tools.unmarked_at_start or not get_call_openers(tools)


def _list_body_markers(body: CallBody) -> list[Group]:
    if isinstance(body, NamedObject):
        return [body.name_ends, body.fence, body.string_markers]
    if isinstance(body, TaggedArguments):
        pairs = (body.key, body.value)
        return [body.name_ends, *(group for pair in pairs for group in (pair.open, pair.close))]
    return [(body.prefix,)] if isinstance(body, NestedElements) else []


def _list_header_markers(header: MessageHeader | None) -> list[Group]:
    return [header.open, header.end, header.close] if header else []


def _drop_trivial(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Drop markers so short that any text may contain them."""
    groups = (tuple(marker for marker in group if len(marker.strip()) > 1) for group in groups)
    return tuple(group for group in groups if group)


def measure_coverage(
    output_format: ToolFormat | ReasoningFormat, has: Callable[[str], bool]
) -> tuple[int, int]:
    """Return how many of a format's markers are missing, and the weighted length of the others."""
    coverages = [_measure_groups(groups, has) for groups in _group_markers(output_format)]
    # a body that is listed earlier is more common and counts a little more
    ranked = [(missing, length - index) for index, (missing, length) in enumerate(coverages)]
    return min(ranked, key=lambda coverage: (coverage[0], -coverage[1]), default=(0, 0))


def make_marker_check(text: str) -> Callable[[str], bool]:
    return lambda marker: contains_marker(marker, text)


def _group_markers(output_format: ToolFormat | ReasoningFormat) -> Sequence[tuple[Group, ...]]:
    if isinstance(output_format, ReasoningFormat):
        return [
            _drop_trivial(
                [
                    output_format.open,
                    output_format.close,
                    output_format.dropped,
                    output_format.answer_wrapper.open,
                    output_format.answer_wrapper.close,
                    *_list_header_markers(output_format.header),
                ]
            )
        ]
    frame = [
        output_format.section.open,
        output_format.section.close,
        output_format.call.open,
        output_format.call.close,
        output_format.dropped,
        *_list_header_markers(output_format.header),
    ]
    return [_drop_trivial([*frame, *_list_body_markers(body)]) for body in output_format.bodies]


def _measure_groups(groups: Iterable[Group], has: Callable[[str], bool]) -> tuple[int, int]:
    missing = length = 0
    for group in groups:
        # the first spelling is the most common and counts a little more
        lengths = [
            2 * len(marker) - (index > 0) for index, marker in enumerate(group) if has(marker)
        ]
        missing += not lengths
        length += max(lengths, default=0)
    return missing, length


def match_hints(output_format: ToolFormat | ReasoningFormat, text: str) -> int:
    """Return 1 if the text contains a hint of the format, -1 if not, 0 if it has no hints."""
    if not output_format.template_hints:
        return 0
    return 1 if contains_any_marker(output_format.template_hints, text) else -1
