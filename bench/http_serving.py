"""Measurements over HTTP: CPU time per token, the same model in two servers, long answers.

Each part starts its servers once, lets them alternate, and returns a `Table`.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

from bench.measure import (
    Load,
    LoadResult,
    RunningPeer,
    choose_cores,
    compute_ratio,
    find_free_port,
    run_client,
    run_server,
)
from bench.report import BenchOptions, Table

STREAMS = 200
ENDLESS = 10_000  # tokens; more than are generated in any window
SLOTS, CONTEXT = 8, 1024  # of servers with the real model
# servers whose tokens are scripted
SCRIPTED_SERVERS = {
    "dragoman": "bench.scripted_server",
    "fastapi": "bench.fastapi_server",
    "minimal": "bench.minimal_server",
}


def make_body(tokens: int, text: str = "Go on.", **fields: object) -> str:
    chat = {"model": "bench", "messages": [{"role": "user", "content": text}], "stream": True}
    options = {"max_tokens": tokens, "stream_options": {"include_usage": True}}
    return json.dumps(chat | options | fields)


def measure(peer: RunningPeer, bodies: list[str], window: float = 0.0) -> LoadResult:
    """Send requests to a server; read them to their end, or measure for `window` seconds."""
    core = choose_cores()[1]
    return run_client(Load(port=peer.port, pid=peer.pid, core=core, bodies=bodies, window=window))


def start_server(stack: ExitStack, name: str, module: str, *arguments: object) -> RunningPeer:
    """Run a module as a server until the stack is closed; `PORT` stands for its port."""
    port = find_free_port()
    words = [str(port) if argument == "PORT" else str(argument) for argument in arguments]
    return stack.enter_context(run_server(name, [module, *words], port))


def start_model_servers(stack: ExitStack, model: str, *options: object) -> list[RunningPeer]:
    """Start Dragoman and the server of its engine's wheel, with the same model and one thread."""
    flags = ["--slots", SLOTS, "--threads", 1, "--context", CONTEXT, "--served-name", "bench"]
    command = ["serve", model, "--port", "PORT", *flags, *options]
    return [
        start_server(stack, "dragoman", "dragoman", *command),
        start_server(stack, "xllamacpp", "bench.xllamacpp_server", "PORT", model, SLOTS, CONTEXT),
    ]


def alternate(peers: list[RunningPeer], rounds: int) -> Iterator[tuple[int, RunningPeer]]:
    """Yield every peer once per round, rotating the order; round -1 is for warming up."""
    for number in range(-1, rounds):
        for index in range(len(peers)):
            time.sleep(0.3)  # until the previous server has closed its connections
            yield number, peers[(index + number) % len(peers)]


def measure_stream_cpu(options: BenchOptions) -> Table:
    """(a) Server CPU time per token with many streams: Dragoman, FastAPI, and the lower bound."""
    rows = []
    for title, pace in (("paced, one token per 20 ms", 0.02), ("saturated", 0.0)):
        costs: dict[str, list[float]] = defaultdict(list)
        frames: dict[str, float] = {}
        with ExitStack() as stack:
            peers = [
                start_server(stack, name, module, "PORT", pace)
                for name, module in SCRIPTED_SERVERS.items()
            ]
            for number, peer in alternate(peers, options.rounds):
                window = options.window if number >= 0 else 0.5
                result = measure(peer, [make_body(ENDLESS)] * STREAMS, window)
                if number >= 0:
                    costs[peer.name].append(result.cpu_ns / result.tokens / 1000)
                    frames[peer.name] = result.frames / result.tokens
        for name in SCRIPTED_SERVERS:
            cost = costs[name]
            ratio = "" if name == "dragoman" else str(compute_ratio(costs["dragoman"], cost))
            rows.append([title, name, f"{median(cost):.1f}", f"{frames[name]:.2f}", ratio])
    return Table(
        f"(a) Server CPU time per token, {STREAMS} streams",
        ["streams", "server", "µs CPU per token", "frames per token", "dragoman / server"],
        rows,
        [
            "`fastapi` is FastAPI with a pydantic object per chunk and a queue per request; "
            "`minimal` is a bare asyncio protocol that writes prebuilt bytes. Lower is better."
        ],
    )


def make_prompts(number: int, count: int) -> list[str]:
    """Make prompts of about 64 tokens; different numbers make different prompts."""
    return [
        f"Story {number}-{index}: a traveller came to town number {100 * number + index} by the "
        "sea, carrying a lamp, three books and a letter that nobody could read. Tell me at length "
        "what happened to the traveller, to the books and to the letter, one step after the other."
        for index in range(count)
    ]


def compare_model_servers(options: BenchOptions) -> Table:
    """(b) The same weights and the same wheel, behind our HTTP server and behind its own."""
    results: dict[tuple[int, str], list[LoadResult]] = defaultdict(list)
    with ExitStack() as stack:
        peers = start_model_servers(stack, options.model)
        for number, peer in alternate(peers, options.rounds):
            for count in (1, SLOTS):
                bodies = [
                    make_body(options.tokens, text, temperature=0, ignore_eos=True)
                    for text in make_prompts(10 * number + count, count)
                ]
                result = measure(peer, bodies)
                if number >= 0:
                    results[count, peer.name].append(result)
    rows = [row for count in (1, SLOTS) for row in _make_model_rows(count, results)]
    return Table(
        "(b) The same GGUF file and the same wheel, one thread",
        [
            "streams",
            "server",
            "tokens/s",
            "first token, ms",
            "tokens/s, dragoman / server",
            "first token, dragoman − server",
        ],
        rows,
        [
            "`xllamacpp` is the HTTP server in the wheel of the engine. With one stream, tokens/s "
            "counts the tokens after the first; with several, all tokens over the whole time, "
            "including the prompts."
        ],
    )


def _make_model_rows(
    count: int, results: dict[tuple[int, str], list[LoadResult]]
) -> Iterator[list[str]]:
    names = ("dragoman", "xllamacpp")
    rates = {name: [_get_rate(result) for result in results[count, name]] for name in names}
    first_tokens = {
        name: [median(result.first_token) for result in results[count, name]] for name in names
    }
    for name in names:
        rate, first_token = median(rates[name]), 1000 * median(first_tokens[name])
        row = [str(count), name, f"{rate:.1f}", f"{first_token:.1f}"]
        if name == "dragoman":
            yield [*row, "", ""]
        else:
            pairs = zip(first_tokens["dragoman"], first_tokens[name], strict=True)
            difference = 1000 * median([ours - theirs for ours, theirs in pairs])
            ratio = compute_ratio(rates["dragoman"], rates[name])
            yield [*row, str(ratio), f"{difference:+.1f} ms"]


def _get_rate(result: LoadResult) -> float:
    """Return tokens per second.

    With several streams only the total counts: some decode while others wait for their first token.
    """
    if len(result.decode_rate) == 1:
        return result.decode_rate[0]
    return result.tokens / result.seconds


def measure_long_answers(options: BenchOptions) -> Table:
    """(c) An answer that is eight times as long must not cost more than eight times as much."""
    lengths = (1000, 8000)
    costs: dict[int, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        peer = start_server(stack, "dragoman", SCRIPTED_SERVERS["dragoman"], "PORT", 0.0)
        for number in range(-1, options.rounds):
            for length in lengths:
                result = measure(peer, [make_body(length)] * 4)
                if result.tokens != 4 * length:
                    raise SystemExit(f"got {result.tokens} tokens instead of {4 * length}")
                if number >= 0:
                    costs[length].append(result.cpu_ns / result.tokens / 1000)
    rows = [[f"{length:,}", f"{median(costs[length]):.1f}"] for length in lengths]
    ratio = compute_ratio(costs[lengths[1]], costs[lengths[0]])
    return Table(
        "(c) Server CPU time per token of a short and a long answer",
        ["tokens of the answer", "µs CPU per token"],
        rows,
        [f"A token of the long answer costs {ratio} a token of the short one; 1 is linear."],
    )
