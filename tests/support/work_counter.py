"""How much work something is, counted and not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python run, a turn of a loop in one line included."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    work()  # what is only done the first time does not count
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
