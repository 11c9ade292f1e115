"""A server whose engine makes a step only when a test says so, and clients with keys for it.

Rates are then counted in steps of the engine, not in seconds, so a busy machine does not change
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Adapter
from tests.support.serving import RunningServer, make_scripted_app, run_app

TIMEOUT = 60.0  # seconds, more than any test should need
PAUSE = 0.001


class SteppedEngine(ScriptedEngine):
    """Makes a step when a test allows it, also for each call of `embed`."""

    async def embed(
        self, inputs: Sequence[list[int] | str], adapters: Sequence[Adapter] = ()
    ) -> list[list[float]]:
        self.active += 1
        try:
            with self._get_clock(Reply()).open_stream() as stream:
                await stream.wait()
            return await super().embed(inputs, adapters)
        finally:
            self.active -= 1


class SteppedServer:
    """A server with an engine that is stepped by hand."""

    def __init__(self, server: RunningServer, engine: ScriptedEngine) -> None:
        self.server = server
        self.engine = engine
        self.gate = server.get_gate()
        self.steps = 0

    @asynccontextmanager
    async def open_client(self, key: str) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self.server.url, headers=headers, timeout=TIMEOUT, limits=limits
        ) as client:
            yield client

    async def step(self) -> None:
        """Let the engine make one step, and the server do all that follows from it."""
        self.steps += 1
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._step(), self.server.loop))

    async def _step(self) -> None:
        for _ in range(1000):
            if 0 < self._count_jobs() <= self.engine.active:
                break  # else one is on its way to the engine
            await asyncio.sleep(PAUSE)
        self.engine.tick()
        for _ in range(30):
            await asyncio.sleep(0)

    def _count_jobs(self) -> int:
        return sum(1 for _ in self.gate._queue.list_running())

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110  # it is about another thread
                await asyncio.sleep(PAUSE)

    def count_owners(self) -> int:
        """Count the owners of the requests at the gate."""
        tickets = asyncio.run_coroutine_threadsafe(self._list_owners(), self.server.loop)
        return len(tickets.result(TIMEOUT))

    async def _list_owners(self) -> set[str]:
        return {ticket.owner for ticket in (*self.gate._waiting, *self.gate._running)}

    async def run_victim(
        self, send: Callable[[], Awaitable[httpx.Response]], answers: int, owners: int
    ) -> int:
        """Send one request after the other; return the steps that their answers take.

        The engine makes no step while the next request is on its way, so only turns count.
        """
        before = self.steps
        for _ in range(answers):
            task = asyncio.ensure_future(send())
            while not task.done():
                await self.wait_until(lambda: task.done() or self.count_owners() == owners)  # noqa: B023
                if not task.done():
                    await self.step()
            response = task.result()
            assert response.status_code == 200, response.text
        return self.steps - before


@asynccontextmanager
async def serve_stepped(
    answer: str, slots: int, keys: tuple[str, ...], **options: Any
) -> AsyncIterator[SteppedServer]:
    engine = SteppedEngine(answer, pace=None, slots=slots)
    app = make_scripted_app(engine, api_key=keys, drain=0.0, hang_timeout=600, **options)
    with run_app(app) as server:
        yield SteppedServer(server, engine)
