"""The stall timer, with a transport and a clock under control. `test_connection` tests the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.http.closing import StallTimer


class FakeTransport:
    """A transport with a given write buffer size, and an event loop with a clock set by hand."""

    def __init__(self) -> None:
        self.size = 0
        self.aborted = False
        self.now = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        loop: Any = self
        self._timers.append(asyncio.TimerHandle(self.now + seconds, callback, (), loop))
        return self._timers[-1]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers.remove(handle)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer.when() <= self.now]
        for timer in due:
            self._timers.remove(timer)
            timer._run()


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> FakeTransport:
    transport = FakeTransport()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: transport)
    return transport


def test_client_that_reads_everything_stays(transport: FakeTransport) -> None:
    stall = StallTimer(transport, 1.0)  # type: ignore[arg-type]
    for _ in range(20):
        transport.size = 65_000
        stall.restart()
        transport.wait(0.3)
        transport.size = 0
    assert not transport.aborted


def test_client_that_reads_some_stays_until_it_stops(transport: FakeTransport) -> None:
    stall = StallTimer(transport, 1.0)  # type: ignore[arg-type]
    transport.size = 65_000
    stall.restart()
    for transport.size in (30_000, 20_000):
        transport.wait(1.0)
    transport.size = 10_000  # below the low-water mark: writing resumes, no new pause yet
    stall.on_buffer_drained(more_follows=True)
    transport.size = 60_000
    transport.wait(1.0)
    assert not transport.aborted
    stall.restart()
    transport.wait(0.9)
    assert not transport.aborted
    transport.wait(0.1)
    assert transport.aborted


def test_client_that_does_not_read_the_end_is_dropped(transport: FakeTransport) -> None:
    stall = StallTimer(transport, 1.0)  # type: ignore[arg-type]
    transport.size = 10_000
    stall.on_buffer_drained(more_follows=False)
    transport.wait(1.0)
    assert transport.aborted
