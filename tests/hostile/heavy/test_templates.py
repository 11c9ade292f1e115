"""Every template of `bombs.toml`, served and rendered for a request."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.holes.test_templates import check_bombs, run_bombs


def test_hole_6_every_resource_bomb_is_stopped(count_cases: Callable[[int], None]) -> None:
    results = run_bombs()
    assert len(results) >= 20
    check_bombs(results)
    count_cases(len(results))
