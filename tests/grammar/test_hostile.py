"""Constraints that mean harm cost their sender a 400, or no more than any answer costs.

A real server with the real model gets every value of `hostile`, one after another, while somebody
asks all the time whether it lives. `make test-constraints` has each of them in every field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hostile import CASES, HostileCase
from tests.support.hostile_load import (
    AttackedServer,
    check_still_works,
    send_attack,
    serve_under_attack,
)


@pytest.fixture(scope="module")
def siege(default_model: Path) -> Iterator[AttackedServer]:
    with serve_under_attack(default_model) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_value_is_answered(siege: AttackedServer, case: HostileCase) -> None:
    """Every other one as a stream."""
    send_attack(siege, case, streamed=CASES.index(case) % 2 == 1)


def test_afterwards_all_is_as_it_was(siege: AttackedServer) -> None:
    check_still_works(siege)
