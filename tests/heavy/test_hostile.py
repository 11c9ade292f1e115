"""Every hostile value in every field that accepts it; see `tests/grammar/test_hostile.py`."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.hostile_constraints import ALL_CASES
from tests.support.hostile_load import check_attack, check_still_works, serve_under_attack

SLOW = 1.0  # seconds; slower responses are printed


def test_every_hostile_value_in_every_field(default_model: Path) -> None:
    with serve_under_attack(default_model) as server:
        for index, case in enumerate(ALL_CASES):
            started = time.perf_counter()
            try:
                check_attack(server, case, streamed=index % 2 == 1)
            except Exception as error:
                error.add_note(str(case))
                raise
            seconds = time.perf_counter() - started
            if seconds > SLOW:
                print(f"{seconds:4.1f} s: {case}", flush=True)
        check_still_works(server)
