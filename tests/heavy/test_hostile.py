"""Every hostile value in every field that takes one: see `tests/test_hostile.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.hostile import EVERY
from tests.real import serve
from tests.serving import Running
from tests.siege import Watcher, attack, check_unharmed, engine_of

SLOW = 1.0  # seconds of an answer that is worth telling of


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[Running]:
    with serve(default_model, context=512, slots=2) as made:
        yield made


def test_every_hostile_value_in_every_field(server: Running) -> None:
    pid = engine_of(server).pid
    headers = {"content-type": "application/json"}
    with (
        Watcher(server.url) as watcher,
        httpx.Client(base_url=server.url, timeout=60, headers=headers) as client,
    ):
        for at, case in enumerate(EVERY):
            begun = time.perf_counter()
            try:
                attack(client, case, streamed=at % 2 == 1)
            except Exception as error:
                error.add_note(str(case))
                raise
            spent = time.perf_counter() - begun
            if spent > SLOW:
                print(f"{spent:4.1f} s: {case}", flush=True)
        check_unharmed(client, server, watcher, pid)
