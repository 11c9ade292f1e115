"""Faults 1 to 5, a thousand times: no slot is leaked, and the engine stops at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.hostile.faults.test_client import measure_abort, serve_slots, wait_for_engine
from tests.support.fault_clients import ENDINGS, STREAMS, make_body, read_until, start_request

TRIALS = 1000
LIMIT = 0.1  # seconds, of 99 in 100


@pytest.mark.parametrize("streamed", [True, False])
def test_thousand_disconnects(streamed: bool, count_cases: Callable[[int], None]) -> None:
    paths, endings, seconds = list(STREAMS), list(ENDINGS.values()), []
    with serve_slots() as server:
        for number in range(TRIALS):
            path, started = paths[number % len(paths)], server.engine.started
            body = make_body(path, stream=streamed)
            if path == "/v1/chat/completions":
                body["n"] = 4
            with start_request(server.port, path, body) as client:
                if streamed:
                    read_until(client, STREAMS[path])
                else:
                    wait_for_engine(server, lambda engine: engine.started > started)  # noqa: B023
                seconds.append(measure_abort(server, partial(endings[number % 2], client)))
    seconds.sort()
    p50, p99 = seconds[TRIALS // 2], seconds[TRIALS * 99 // 100]
    print(f"\nstopped after {1000 * p50:.1f} ms (p50), {1000 * p99:.1f} ms (p99)")
    assert p99 <= LIMIT
    count_cases(TRIALS)
