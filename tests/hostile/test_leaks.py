"""The soak test counts leaks exactly; this holds its count to processes that have some."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.leaks import find_leaks

BEFORE = {"threads": ["MainThread", "uvloop_0", "native"], "tasks": ["serve", "watch"]}


@pytest.mark.parametrize(
    ("after", "leaked"),
    [
        ({}, {}),
        ({"threads": ["MainThread", "native"], "tasks": ["serve"]}, {}),
        ({"threads": [*BEFORE["threads"], "uvloop_1", "dragoman-worker_0"]}, {}),
        ({"threads": [*BEFORE["threads"], "uvloop_0"]}, {"uvloop_0": 1}),
        ({"threads": [*BEFORE["threads"], "uvloop_1", "uvloop_1"]}, {"uvloop_1": 1}),
        ({"threads": [*BEFORE["threads"], "Thread-7 (run)"]}, {"Thread-7 (run)": 1}),
        ({"threads": [*BEFORE["threads"], "native", "native"]}, {"native": 2}),
        ({"tasks": [*BEFORE["tasks"], "serve"]}, {"serve": 1}),
        ({"tasks": ["serve", "other"]}, {"other": 1}),
    ],
)
def test_leaks_are_counted_by_name(after: dict[str, list[str]], leaked: dict[str, int]) -> None:
    held = [{kind: Counter(names) for kind, names in (BEFORE | new).items()} for new in ({}, after)]
    leaks = find_leaks(held[0], held[1])
    assert sum(leaks.values(), Counter()) == leaked
