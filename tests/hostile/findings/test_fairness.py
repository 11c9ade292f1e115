"""One key's flood leaves another key its share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.support.serving import make_chat
from tests.support.stepped_server import SteppedServer, serve_stepped

KEYS = ("flood", "victim")
ANSWER = "one two three four five six"  # six steps and the end
ANSWERS = 8  # of the victim
MIN_RATE = 0.4  # of what the victim gets alone


async def flood_with_requests(client: httpx.AsyncClient) -> list[int]:
    """Send many requests, and wait until each is accepted or rejected."""
    return await send_all(client, "/v1/chat/completions", make_chat(stream=True), 100)


async def flood_with_prompts(client: httpx.AsyncClient) -> list[int]:
    body = {"model": "scripted", "prompt": ["a"] * 2048, "stream": True}
    return await send_all(client, "/v1/completions", body, 1)


async def flood_with_choices(client: httpx.AsyncClient) -> list[int]:
    return await send_all(client, "/v1/chat/completions", make_chat(stream=True, n=128), 20)


async def flood_with_background_responses(client: httpx.AsyncClient) -> list[int]:
    body = {"model": "scripted", "input": "a", "background": True}
    return await send_all(client, "/v1/responses", body, 300)


async def send_all(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], count: int
) -> list[int]:
    """Send requests at once; return the status of each, before it is answered."""

    async def send() -> int:
        request = client.build_request("POST", path, json=body)
        return (await client.send(request, stream=True)).status_code

    return await asyncio.gather(*(send() for _ in range(count)))


async def flood_with_inputs(client: httpx.AsyncClient) -> list[int]:
    """Embed as many texts as a request may have; the answer comes when all are embedded."""
    body = {"model": "scripted", "input": [f"a{number}" for number in range(2048)]}
    asyncio.ensure_future(client.post("/v1/embeddings", json=body))  # noqa: RUF006
    return []


FLOODS = (
    flood_with_inputs,
    flood_with_requests,
    flood_with_prompts,
    flood_with_choices,
    flood_with_background_responses,
)


async def measure_rate(
    flood: Callable[[httpx.AsyncClient], Awaitable[list[int]]], slots: int
) -> float:
    """Return the rate of a client with one request at a time, relative to its rate alone."""
    async with (
        serve_stepped(ANSWER, slots, KEYS, patience=0) as server,
        server.open_client("flood") as flooder,
        server.open_client("victim") as victim,
    ):

        def send() -> Awaitable[httpx.Response]:
            return victim.post("/v1/chat/completions", json=make_chat())

        alone = await server.run_victim(send, ANSWERS, owners=1)
        statuses = await flood(flooder)
        assert set(statuses) <= {200, 429}
        await server.wait_until(lambda: server.engine.active > 0)
        beside = await server.run_victim(send, ANSWERS, owners=2)
        check_flood_never_stopped(server)
    return alone / beside


def check_flood_never_stopped(server: SteppedServer) -> None:
    assert server.gate.running + server.gate.waiting > 0


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_a_flood_leaves_another_key_its_share(
    flood: Callable[[httpx.AsyncClient], Awaitable[list[int]]],
    slots: int,
    add_figures: Callable[..., None],
) -> None:
    rate = asyncio.run(measure_rate(flood, slots))
    print(f"{flood.__name__}, {slots} slots: {rate:.0%} of the rate alone")
    add_figures("fairness", **{f"{flood.__name__}, slots: {slots}": f"{rate:.0%}"})
    assert rate >= MIN_RATE


async def count_turns(shares: dict[str, float], slots: int, steps: int) -> Counter[str]:
    """Count the jobs that each of several flooding keys gets."""
    keys = {name: f"sk-{name}-0123456789" for name in shares}
    entries = [
        {"name": name, "key": key, "limits": {"queue_share": shares[name]}}
        for name, key in keys.items()
    ]
    async with (
        serve_stepped(ANSWER, slots, (), patience=0, key_entries=entries) as server,
        AsyncExitStack() as stack,
    ):
        for name, key in keys.items():
            client = await stack.enter_async_context(server.open_client(key))
            body = {"model": "scripted", "prompt": [name] * 500, "stream": True}
            await send_all(client, "/v1/completions", body, 1)
        await server.wait_until(lambda: server.count_owners() == len(keys))
        before = len(server.engine.jobs)
        for _ in range(steps):
            await server.step()
        return Counter(str(job.prompt) for job in list(server.engine.jobs)[before:])


@pytest.mark.parametrize("slots", [1, 4])
def test_turns_follow_the_shares_of_keys(slots: int) -> None:
    shares = {"small": 1.0, "large": 3.0}
    turns = asyncio.run(count_turns(shares, slots, 28 * 7))
    print(f"{slots} slots: {dict(turns)}")
    assert turns["large"] / turns["small"] == pytest.approx(3, rel=0.2)
