"""Threads for long work: owners take turns, and what is cancelled is not done."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import Any

import pytest

from dragoman.types.cache_scope import set_cache_scope
from dragoman.types.worker_threads import FairThreads, run_in_decoder, run_in_worker
from tests.support.serving import poll_until


class BusyThread:
    """One thread that is busy until the test lets it go on, and the order of what it does."""

    def __init__(self) -> None:
        self.threads = FairThreads(1, "test")
        self.order: list[str] = []
        self._may_go_on = threading.Event()
        self.first = self.threads.submit("a", lambda: self._may_go_on.wait(10))

    def finish(self) -> None:
        self._may_go_on.set()
        self.threads.submit("last", int).result(10)


def test_an_owner_with_much_work_delays_another_by_one_piece() -> None:
    busy = BusyThread()
    work = [("a", f"a{number}") for number in range(5)] + [("b", "b0"), ("b", "b1"), ("c", "c0")]
    futures = [
        busy.threads.submit(owner, lambda name=name: busy.order.append(name))  # type: ignore[misc]
        for owner, name in work
    ]
    busy.finish()
    for future in futures:
        future.result(10)
    assert busy.order == ["a0", "b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_what_is_cancelled_before_its_turn_is_not_done() -> None:
    busy = BusyThread()
    cancelled = busy.threads.submit("a", lambda: busy.order.append("cancelled"))
    done = busy.threads.submit("b", lambda: busy.order.append("done"))
    assert cancelled.cancel()
    busy.finish()
    done.result(10)
    assert busy.order == ["done"]


def test_errors_and_owners_reach_the_caller() -> None:
    async def fail() -> None:
        set_cache_scope("ann")
        for run in (run_in_worker, run_in_decoder):
            assert await run(int, "7") == 7
            with pytest.raises(ZeroDivisionError):
                await run(lambda: 1 / 0)

    asyncio.run(fail())


class Body:
    """What work takes."""


@pytest.mark.parametrize("run", [run_in_worker, run_in_decoder])
def test_failed_work_is_freed_without_a_garbage_collection(run: Any) -> None:
    def fail(body: Body) -> None:
        raise ValueError(body)

    async def use() -> weakref.ref[Body]:
        body = Body()
        with contextlib.suppress(ValueError):
            await run(fail, body)
        return weakref.ref(body)

    gc.disable()
    try:
        reference = asyncio.run(use())
        poll_until(lambda: reference() is None)
    finally:
        gc.enable()
