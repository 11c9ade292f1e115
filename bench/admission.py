"""Measurements of admission with the real model: floods, overload, disconnects.

The client is one asyncio program with a connection for each request, so that a disconnect is the
end of a connection and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from statistics import median, quantiles

from msgspec import Struct

from bench.http_serving import start_server
from bench.measure import RunningPeer
from bench.report import BenchOptions, Table, Tables

SLOTS, CONTEXT, QUEUE = 4, 512, 160
ANSWER_TOKENS = 16
OVERLOAD = 4
OVERLOAD_SECONDS = 60.0
DISCONNECTS = 1000
FLOOD_KEY, OTHER_KEY = "sk-flood-3b7d41f0", "sk-other-9c2e85a6"
CONTENT = b'"text":"'
SHORT = {"prompt": "a", "max_tokens": 1}


class Response(Struct, frozen=True):
    """A whole response."""

    status: int
    headers: dict[str, str]
    seconds: float  # since the request


class Connection:
    """One request on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent_at = time.perf_counter()

    @classmethod
    async def post(cls, peer: RunningPeer, path: str, key: str, **fields: object) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
        body = json.dumps({"model": "bench", **fields}).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: 127.0.0.1:{peer.port}",
            f"authorization: Bearer {key}",
            "content-type: application/json",
            "connection: close",
            f"content-length: {len(body)}",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await writer.drain()
        return cls(reader, writer)

    async def read_until(self, text: bytes) -> None:
        await self._reader.readuntil(text)

    async def read_whole(self) -> Response:
        data = await self._reader.read()
        seconds = time.perf_counter() - self._sent_at
        head = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:])
        self.abort()
        return Response(int(head[0].split()[1]), headers, seconds)

    def abort(self) -> None:
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


_numbers = itertools.count()


async def complete(peer: RunningPeer, key: str, tokens: int = ANSWER_TOKENS) -> Response:
    """Request a completion of a prompt that no other request has."""
    prompt = f"Story number {next(_numbers)}: once upon a time there was"
    connection = await Connection.post(
        peer,
        "/v1/completions",
        key,
        prompt=prompt,
        max_tokens=tokens,
        ignore_eos=True,
        cache_prompt=False,
    )
    return await connection.read_whole()


def start_dragoman(stack: ExitStack, options: BenchOptions, slots: int) -> RunningPeer:
    flags = ["--slots", slots, "--threads", 1, "--context", CONTEXT, "--served-name", "bench"]
    keys = ["--api-key", FLOOD_KEY, "--api-key", OTHER_KEY, "--queue", QUEUE]
    store = ["--store", "sqlite://"]
    command = ["serve", options.model, "--port", "PORT", *flags, *keys, *store]
    return start_server(stack, "dragoman", "dragoman", *command)


async def count_answers(peer: RunningPeer, key: str, seconds: float) -> float:
    """Send one request after the other; return how many are answered per second."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        count += (await complete(peer, key)).status == 200
    return count / (time.perf_counter() - started)


# Floods


async def flood_with_requests(peer: RunningPeer) -> None:
    async def repeat() -> None:
        while True:
            if (await complete(peer, FLOOD_KEY)).status != 200:
                await asyncio.sleep(0.2)

    await asyncio.gather(*(repeat() for _ in range(64)))


async def flood_with_long_answers(peer: RunningPeer) -> None:
    async def repeat() -> None:
        while True:
            if (await complete(peer, FLOOD_KEY, 8 * ANSWER_TOKENS)).status != 200:
                await asyncio.sleep(0.2)

    await asyncio.gather(*(repeat() for _ in range(64)))


async def flood_with_prompts(peer: RunningPeer) -> None:
    prompts = [f"Story number {next(_numbers)}: once upon a time" for _ in range(2048)]
    fields = {"prompt": prompts, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    connection = await Connection.post(peer, "/v1/completions", FLOOD_KEY, **fields)
    try:
        await connection.read_whole()
    finally:
        connection.abort()


async def flood_with_background_responses(peer: RunningPeer) -> None:
    fields = {"input": "Tell me a long story.", "background": True, "max_output_tokens": 64}
    await asyncio.gather(*(_start_background(peer, fields) for _ in range(300)))
    await asyncio.Event().wait()


async def _start_background(peer: RunningPeer, fields: dict[str, object]) -> None:
    connection = await Connection.post(peer, "/v1/responses", FLOOD_KEY, **fields)
    await connection.read_whole()


FLOODS: dict[str, Callable[[RunningPeer], Awaitable[None]]] = {
    "64 connections, answers of the same length": flood_with_requests,
    "64 connections, answers 8 times as long": flood_with_long_answers,
    "one request of 2,048 prompts": flood_with_prompts,
    "300 background responses": flood_with_background_responses,
}


async def measure_flood(
    peer: RunningPeer, flood: Callable[[RunningPeer], Awaitable[None]], seconds: float
) -> tuple[float, float, float]:
    """Measure a client alone, its first answer beside a flood, and the answers after that.

    Returns answers per second, seconds, and answers per second.
    """
    await complete(peer, OTHER_KEY)
    alone = await count_answers(peer, OTHER_KEY, seconds)
    task = asyncio.ensure_future(flood(peer))
    await asyncio.sleep(1.0)  # until the flood holds every slot
    first = await complete(peer, OTHER_KEY)
    beside = await count_answers(peer, OTHER_KEY, 2 * seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return alone, first.seconds, beside


def measure_floods(options: BenchOptions) -> Table:
    rows = []
    for slots in (1, SLOTS):
        for name, flood in FLOODS.items():
            with ExitStack() as stack:
                peer = start_dragoman(stack, options, slots)
                alone, first, beside = asyncio.run(measure_flood(peer, flood, options.window))
            row = [name, str(slots), f"{alone:.1f}", f"{first:.1f} s", f"{beside:.1f}"]
            rows.append([*row, f"{beside / alone:.0%}"])
    return Table(
        "(g) One key's flood beside another key with one request at a time",
        ["flood", "slots", "answers/s alone", "first answer", "answers/s beside it", "rate"],
        rows,
        [
            "What runs is not interrupted, so the first answer waits for a slot. All slots share "
            "one thread of the engine: beside three others, a slot is slower than alone."
        ],
    )


# Overload


async def measure_capacity(peer: RunningPeer, seconds: float) -> float:
    """Return how many answers per second a client on every slot gets."""
    rates = await asyncio.gather(*(count_answers(peer, OTHER_KEY, seconds) for _ in range(SLOTS)))
    return sum(rates)


async def offer_load(peer: RunningPeer, rate: float, seconds: float) -> list[Response]:
    """Send requests at a rate, whatever becomes of them."""
    started, tasks = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
        tasks.append(asyncio.ensure_future(complete(peer, (FLOOD_KEY, OTHER_KEY)[number % 2])))
    return await asyncio.gather(*tasks)


async def overload(peer: RunningPeer, seconds: float) -> list[str]:
    await measure_capacity(peer, 1.0)
    before = await measure_capacity(peer, seconds / 4)
    started = time.perf_counter()
    responses = await offer_load(peer, OVERLOAD * before, seconds)
    elapsed = time.perf_counter() - started
    after = await measure_capacity(peer, seconds / 4)
    alone = (before + after) / 2
    goodput = sum(response.status == 200 for response in responses) / elapsed
    refusals = [response for response in responses if response.status != 200]
    statuses = Counter(response.status for response in refusals)
    with_header = sum("retry-after" in response.headers for response in refusals)
    return [
        f"{alone:.1f}",
        f"{goodput:.1f}",
        f"{goodput / alone:.0%}",
        ", ".join(f"{count} × {status}" for status, count in statuses.items()),
        f"{with_header}/{len(refusals)}",
        f"{1000 * compute_p99(response.seconds for response in refusals):.0f} ms",
    ]


def measure_overload(options: BenchOptions) -> Table:
    with ExitStack() as stack:
        row = asyncio.run(overload(start_dragoman(stack, options, SLOTS), OVERLOAD_SECONDS))
    return Table(
        f"(g) {OVERLOAD} times as many requests as {SLOTS} slots can run, for "
        f"{OVERLOAD_SECONDS:.0f} s",
        ["answers/s alone", "in overload", "goodput", "refused", "Retry-After", "p99 of a refusal"],
        [row],
    )


# Disconnects


def compute_p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return quantiles(ordered, n=100)[98] if len(ordered) > 1 else sum(ordered)


async def time_disconnect(peer: RunningPeer, *, reset: bool) -> float:
    """Disconnect from the only slot; return the seconds until the next request has its answer."""
    story = {"prompt": f"Story {next(_numbers)}: once", "stream": True, "ignore_eos": True}
    running = await Connection.post(peer, "/v1/completions", OTHER_KEY, **story)
    await running.read_until(CONTENT)
    waiting = await Connection.post(peer, "/v1/completions", OTHER_KEY, **SHORT)
    await asyncio.sleep(0.02)  # until it waits in the queue
    disconnected_at = time.perf_counter()
    if reset:
        running.abort()
    else:
        running.close()
    response = await waiting.read_whole()
    if response.status != 200:
        raise SystemExit(f"unexpected status: {response.status}")
    return time.perf_counter() - disconnected_at


async def time_short_requests(peer: RunningPeer, count: int) -> list[float]:
    """Return the seconds that the same requests take on an idle server."""
    responses = [
        await (await Connection.post(peer, "/v1/completions", OTHER_KEY, **SHORT)).read_whole()
        for _ in range(count)
    ]
    return [response.seconds for response in responses]


async def time_disconnects(peer: RunningPeer, count: int) -> list[float]:
    return [await time_disconnect(peer, reset=number % 2 == 0) for number in range(count)]


def measure_disconnects(options: BenchOptions) -> Table:
    with ExitStack() as stack:
        peer = start_dragoman(stack, options, 1)
        asyncio.run(time_disconnects(peer, 5))
        idle = asyncio.run(time_short_requests(peer, DISCONNECTS // 4))
        seconds = asyncio.run(time_disconnects(peer, DISCONNECTS))
    alone = median(idle)
    delays = [value - alone for value in seconds]
    times = [median(delays), compute_p99(delays), alone, compute_p99(idle)]
    row = [f"{DISCONNECTS:,}", *(f"{1000 * value:.1f} ms" for value in times)]
    return Table(
        "(g) From a disconnect to the free slot",
        ["disconnects", "median", "p99", "the next request alone, median", "p99"],
        [row],
        [
            "There is one slot, and the next request waits for it. Measured is the time from the "
            "disconnect to that request's answer, less the median time of the same request on an "
            "idle server. Half of the clients reset the connection, half close it."
        ],
    )


def measure_admission(options: BenchOptions) -> Tables:
    """(g) Floods, overload and disconnects, with the real model."""
    parts = (measure_floods, measure_overload, measure_disconnects)
    return Tables([part(options) for part in parts])
