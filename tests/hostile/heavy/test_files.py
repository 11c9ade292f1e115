"""A million mutated model headers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hostile.holes.test_files import check_mutants

COUNT = 125_000  # for each of eight seeds


@pytest.mark.parametrize("seed", range(8))
def test_hole_87_a_million_mutated_headers(seed: int, count_cases: Callable[[int], None]) -> None:
    check_mutants(COUNT, seed)
    count_cases(COUNT)
