"""Every hostile value in every field that takes one: see `tests/test_hostile.py`."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support.hostile import ALL_CASES
from tests.support.hostile_load import check_still_works, send_attack, serve_under_attack

SLOW = 1.0  # seconds of an answer that is worth telling of


def test_every_hostile_value_in_every_field(default_model: Path) -> None:
    with serve_under_attack(default_model) as siege:
        for at, case in enumerate(ALL_CASES):
            begun = time.perf_counter()
            try:
                send_attack(siege, case, streamed=at % 2 == 1)
            except Exception as error:
                error.add_note(str(case))
                raise
            spent = time.perf_counter() - begun
            if spent > SLOW:
                print(f"{spent:4.1f} s: {case}", flush=True)
        check_still_works(siege)
