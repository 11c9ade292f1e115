"""Constraints that mean harm cost their sender a 400, or no more than any answer costs.

A real server with the real model gets every value of `hostile`, one after another, while somebody
asks all the time whether it lives. `make test-constraints` has each of them in every field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.hostile import CASES, Case
from tests.real import serve
from tests.serving import Running
from tests.siege import Watcher, attack, check_unharmed, engine_of


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[Running]:
    with serve(default_model, context=512, slots=2) as made:
        yield made


@pytest.fixture(scope="module")
def pid(server: Running) -> int:
    found: int = engine_of(server).pid
    return found


@pytest.fixture(scope="module")
def watcher(server: Running) -> Iterator[Watcher]:
    with Watcher(server.url) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=server.url, timeout=60, headers=headers) as made:
        yield made


@pytest.mark.usefixtures("pid", "watcher")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_value_is_answered(client: httpx.Client, case: Case) -> None:
    """Every other one as a stream."""
    attack(client, case, streamed=CASES.index(case) % 2 == 1)


def test_afterwards_all_is_as_it_was(
    client: httpx.Client, server: Running, watcher: Watcher, pid: int
) -> None:
    check_unharmed(client, server, watcher, pid)
