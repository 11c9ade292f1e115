"""Hostile constraints get a 400, or cost no more than any other answer.

A real server with the real model gets every value of `hostile`, one after another, while its health
is probed continuously. `make test-constraints` sends each value in every field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hostile_constraints import CASES, HostileCase
from tests.support.hostile_load import (
    AttackedServer,
    check_attack,
    check_still_works,
    serve_under_attack,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[AttackedServer]:
    """Each test process attacks a server of its own, and checks it after its last attack."""
    with serve_under_attack(default_model) as attacked:
        yield attacked
        check_still_works(attacked)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_hostile_value_gets_a_response(server: AttackedServer, case: HostileCase) -> None:
    """Every other request is streamed."""
    check_attack(server, case, streamed=CASES.index(case) % 2 == 1)


def test_server_works_after_attacks(server: AttackedServer) -> None:
    check_still_works(server)
