"""Tiny frames of a WebSocket, of which thousands arrive at once, delay nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from websockets.frames import Opcode

from tests.http.test_websocket import make_frame, open_websocket, read_until, run_websocket
from tests.support.loop_lag import LAG_LIMIT, measure_thread_lag
from tests.support.serving import RunningServer
from tests.support.timing import measures_time

EMPTY = b"\x00\x80\x00\x00\x00\x00"  # a fragment of a message, without text
FLOODS = {
    "fragments": make_frame(b"", fin=False) + EMPTY * 100_000,
    "pings": make_frame(b"", Opcode.PING) * 100_000,
    "pongs": make_frame(b"", Opcode.PONG) * 100_000,
    "messages": make_frame(b"{}") * 60_000,
}
ENDS = {
    "fragments": b"expected a continuation frame",
    "pings": b"done",
    "pongs": b"done",
    "messages": b"Too many messages are waiting.",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with run_websocket() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLOODS)
@measures_time
def test_tiny_frames_are_parsed_in_turns(server: RunningServer, kind: str) -> None:
    with open_websocket(server) as client, measure_thread_lag(server) as lag:
        with suppress(ConnectionError):  # what is refused is not read to its end
            client.sendall(FLOODS[kind] + make_frame(b"done"))
        assert ENDS[kind] in read_until(client, ENDS[kind])
    assert lag.get_quantile(1) <= LAG_LIMIT, lag
