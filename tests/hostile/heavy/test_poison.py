"""More ways in which a request kills the engine: it is refused all the same."""

from __future__ import annotations

from tests.hostile.findings.test_poison import MORE_DEADLY, check_third_try
from tests.support.supervised_engine import serve_supervised


def test_the_third_try_is_refused() -> None:
    with serve_supervised() as server:
        check_third_try(server, MORE_DEADLY)
