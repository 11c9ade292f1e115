"""Parsers with a megabyte of hostile output in every format."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dragoman.formats import get_reasoning_formats, get_tool_formats
from tests.hostile.holes.test_output import check_linear

FORMATS = [("tools", name) for name in get_tool_formats()]
FORMATS += [("reasoning", name) for name in get_reasoning_formats()]


@pytest.mark.parametrize(("kind", "name"), FORMATS)
def test_hole_23_a_megabyte_takes_linear_time(
    kind: str, name: str, count_cases: Callable[[int], None]
) -> None:
    count_cases(check_linear(name, kind, (1 << 18, 1 << 20)))
