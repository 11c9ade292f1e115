"""Every large body for every route: none of them blocks the event loop."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.findings import test_loop_lag as short
from tests.support.serving import RunningServer
from tests.support.timing import measures_time

server = short.server


@measures_time
def test_no_body_blocks_the_loop(server: RunningServer, add_figures: Callable[..., None]) -> None:
    lag = short.check_lag_of_large_bodies(server, every=1)
    add_figures("lag", **{"large bodies": lag})
