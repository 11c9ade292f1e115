"""Measures work by counting executed lines, which is stable where timing is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_lines(work: Callable[[], object]) -> int:
    """Return how many lines of Python run; an iteration of a one-line loop counts as a line."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    work()  # do one-time work before counting
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
