"""Repeat a test that asserts a time, because other programs use the machine, too.

A time is a measurement: one that is within the limit shows that the code can hold it, one above
the limit may show nothing but another program or a garbage collection of the test process. So
such a test runs again when one of its assertions fails, and fails when no run holds the limit.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec

ATTEMPTS = 3

P = ParamSpec("P")


def freeze_objects() -> None:
    """Keep all objects that exist now out of garbage collections for the rest of the process.

    There are millions in a process that has collected the tests. A collection that visits them
    takes half a second, in which nothing else runs: in the middle of a measurement or not, and
    once for each server that is tested. `gc.unfreeze` would bring them all back.
    """
    gc.collect()
    gc.freeze()


def measures_time(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test until its assertions hold, at most `ATTEMPTS` times."""

    @functools.wraps(test)
    def repeat(*args: P.args, **kwargs: P.kwargs) -> None:
        for attempt in range(ATTEMPTS):
            gc.collect()  # not in the middle of the measurement
            try:
                return test(*args, **kwargs)
            except AssertionError as error:
                if attempt == ATTEMPTS - 1:
                    raise
                print(f"repeated, because of: {error}")
        return None

    return repeat
