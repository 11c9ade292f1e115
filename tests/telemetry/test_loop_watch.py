"""What blocks the event loop is named in the log; a loop that answers is not."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dragoman.telemetry import loop_watch
from dragoman.telemetry.loop_watch import LoopWatch
from tests.support.serving import poll_until


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "INTERVAL", 0.02)


def block_for_a_while() -> None:
    time.sleep(0.8)


def list_watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loop watch"]


def test_blocking_function_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "LIMIT", 0.3)

    async def main() -> None:
        watch = LoopWatch()
        watch.start()
        watch.start()  # has no effect
        await asyncio.sleep(0.05)
        block_for_a_while()
        await asyncio.sleep(0.1)
        assert len(list_watchers()) == 1
        watch.stop()

    asyncio.run(main())
    poll_until(lambda: not list_watchers())
    first, second = [r.getMessage() for r in caplog.records if r.name == "dragoman.loop"]
    assert "block_for_a_while (" in first
    assert "test_loop_watch.py" in first
    assert "was blocked for" in second


def test_loop_that_waits_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watch = LoopWatch()
        watch.start()
        await asyncio.sleep(0.5)

    asyncio.run(main())  # a watch that is never stopped ends with its loop
    poll_until(lambda: not list_watchers())
    assert not [record for record in caplog.records if record.name == "dragoman.loop"]
