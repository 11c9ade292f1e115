"""Four times as many requests as an engine can run: what it finishes, how the rest is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from tests.support.serving import make_chat
from tests.support.stepped_server import SteppedServer, serve_stepped
from tests.support.timing import measures_time

ANSWER = "one two three four"
SLOTS, QUEUE = 4, 4
OVERLOAD = 4
STEPS = 43  # eight answers on each slot, and three steps more: a step may come before a request
MIN_GOODPUT = 0.95


class Load:
    """Clients that always have a number of requests on their way."""

    def __init__(
        self, server: SteppedServer, clients: list[httpx.AsyncClient], requests: int
    ) -> None:
        self._server = server
        self._clients = clients
        self._requests = requests
        self._tasks: set[asyncio.Task[None]] = set()
        self.finished = 0
        self.refusals: Counter[tuple[int, bool]] = Counter()  # status, and whether to retry later
        self._answered = 0
        self._sent = 0

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            while len(self._tasks) < self._requests:
                self._send()
            await self._server.wait_until(self._is_settled)
            await self._server.step()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _is_settled(self) -> bool:
        """Whether every request was refused, or is at the gate."""
        gate = self._server.gate
        return self._answered + gate.running + gate.waiting >= self._sent

    def _send(self) -> None:
        self._sent += 1
        client = self._clients[self._sent % len(self._clients)]
        task = asyncio.ensure_future(self._request(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/chat/completions", json=make_chat())
        self._answered += 1
        if response.status_code == 200:
            self.finished += 1
        else:
            retry_after = response.headers.get("retry-after", "")
            self.refusals[response.status_code, retry_after.isdigit() and retry_after != "0"] += 1


async def measure_goodput(keys: tuple[str, ...]) -> tuple[float, Counter[tuple[int, bool]]]:
    """Return the goodput in overload relative to a full engine, and the refusals."""
    async with serve_stepped(ANSWER, SLOTS, keys, queue=QUEUE) as server:
        finished: list[int] = []
        refusals: Counter[tuple[int, bool]] = Counter()
        for requests in (SLOTS, OVERLOAD * SLOTS):
            clients = [server.open_client(key) for key in keys or ("",)]
            load = Load(server, [await client.__aenter__() for client in clients], requests)
            await load.run(STEPS)
            for client in clients:
                await client.__aexit__(None, None, None)
            await server.wait_until(lambda: server.gate.running + server.gate.waiting == 0)
            finished.append(load.finished)
            refusals += load.refusals
    return finished[1] / finished[0], refusals


@pytest.mark.parametrize("keys", [(), ("a",), ("a", "b", "c")], ids=len)
@measures_time
def test_goodput_under_overload(keys: tuple[str, ...], add_figures: Callable[..., None]) -> None:
    goodput, refusals = asyncio.run(measure_goodput(keys))
    print(f"{len(keys)} keys: goodput {goodput:.0%} of a full engine's, refusals {dict(refusals)}")
    add_figures("overload", **{f"keys: {len(keys)}": f"{goodput:.0%}"})
    assert goodput >= MIN_GOODPUT
    assert refusals
    assert {(status, retries) for status, retries in refusals} <= {(429, True), (503, True)}
