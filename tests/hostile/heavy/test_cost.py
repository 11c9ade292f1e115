"""Every large body for every route: cheap before it is refused."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile.findings import test_cost as short
from tests.support.server_process import ServerProcess
from tests.support.timing import measures_time

server = short.server


@measures_time
def test_no_request_is_expensive(server: ServerProcess, add_figures: Callable[..., None]) -> None:
    add_figures("cost", **short.check_costs(server, every=1))
