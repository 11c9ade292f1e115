"""A native hang with the default settings, which takes half a minute to be noticed."""

from __future__ import annotations

from pathlib import Path

from dragoman.config import Settings
from tests.hostile.findings.test_hang import ENGINE, NOTICED_WITHIN, hang_and_recover
from tests.support.real_model import serve


def test_a_native_hang_is_noticed_within_30_seconds(default_model: Path) -> None:
    with serve(default_model, **ENGINE) as server:
        seconds = hang_and_recover(server)
    assert Settings().hang_timeout <= seconds <= NOTICED_WITHIN
