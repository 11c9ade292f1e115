"""Requests that begin with the same long prefix at the same time, against one alone.

Each round has a new prefix, so that nothing is cached. All requests of a round have the same prefix
and different ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx

from bench.measure import RunningPeer, compute_ratio, find_free_port, run_server
from bench.report import BenchOptions, Table

PREFIX_TOKENS, REQUESTS = 1500, 4
FIRST_TOKEN, LAST_TOKEN = 1000, 40_000  # ordinary tokens of the default model


def measure_shared_prefix(options: BenchOptions) -> Table:
    """(j) Four requests with one prefix, and one alone."""
    draw = random.Random(1)
    alone: list[float] = []
    together: list[float] = []
    port = find_free_port()
    flags = ["--served-name", "bench", "--store", "sqlite://", "--slots", str(REQUESTS)]
    command = ["dragoman", "serve", options.model, "--port", str(port), *flags]
    with run_server("dragoman", command, port, is_pinned=False) as server:
        _measure(server, [[1, 2, 3]])
        for _ in range(options.rounds):
            alone.append(_measure(server, _make_prompts(draw, 1)))
            together.append(_measure(server, _make_prompts(draw, REQUESTS)))
    ratio = compute_ratio(together, alone)
    return Table(
        f"(j) {REQUESTS} requests at once with one prefix of {PREFIX_TOKENS:,} tokens",
        ["requests", "time to the last first token, ms", "as long as one"],
        [
            ["1", f"{1000 * median(alone):.0f}", ""],
            [str(REQUESTS), f"{1000 * median(together):.0f}", str(ratio)],
        ],
        ["The prefix is processed once, and its state is restored into the other slots."],
    )


def _make_prompts(draw: random.Random, count: int) -> list[list[int]]:
    prefix = [draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(PREFIX_TOKENS)]
    return [[*prefix, FIRST_TOKEN + number, FIRST_TOKEN] for number in range(count)]


def _measure(server: RunningPeer, prompts: Sequence[list[int]]) -> float:
    """Send all prompts at once; return how long the last one waits for its first token."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        started = time.perf_counter()
        ends = list(threads.map(lambda prompt: _complete(server, prompt), prompts))
    return max(ends) - started


def _complete(server: RunningPeer, prompt: list[int]) -> float:
    """Return when the answer of one token has come."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": 1}
    url = f"http://127.0.0.1:{server.port}/v1/completions"
    httpx.post(url, json=body, timeout=300).raise_for_status()
    return time.perf_counter()
