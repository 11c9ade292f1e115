"""What a server in front of another one costs: CPU time per chunk, and time to the first token."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from statistics import median

from bench.gateways import list_missing, start_litellm, start_smg
from bench.http_serving import ENDLESS, alternate, make_body, start_server
from bench.measure import (
    Load,
    LoadResult,
    RunningPeer,
    choose_cores,
    compute_ratio,
    make_post,
    run_client,
)
from bench.report import BenchOptions, Table, Tables

STREAMS = 50
GATEWAY_STREAMS = (10, 50)
GATEWAY_SECONDS = 12  # of a stream: LiteLLM reads on after its clients have left
PACE = 0.02
FIRST_TOKENS = 40  # requests, one after the other, of one round
FIRST_TEXT = re.compile(rb'"content":"[^"]')
WORKER_BODY = json.dumps({"prompt": [72, 105], "n_predict": 1, "stream": True})


def measure_upstream(options: BenchOptions) -> Tables:
    """(h) What an upstream server costs us, and what other servers in front of one cost."""
    return Tables([compare_engines(options), compare_gateways(options)])


def compare_gateways(options: BenchOptions) -> Table:
    """Compare Dragoman, LiteLLM and smg in front of one chat server."""
    title = "(h) Servers in front of one chat server, one token per 20 ms"
    if missing := list_missing():
        names = " and ".join(missing)
        return Table(title, [f"{names} not installed"], [], ["`make bench-gateways` installs it."])
    costs: dict[tuple[str, int], list[float]] = defaultdict(list)
    waits: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        worker = start_server(stack, "worker", "bench.scripted_server", "PORT", PACE)
        peers = _start_gateways(stack, f"http://127.0.0.1:{worker.port}")
        for number, peer in alternate([*peers, worker], options.rounds):
            found = _measure_first_tokens(peer)
            if number >= 0:
                waits[peer.name].append(found)
        for streams in GATEWAY_STREAMS:  # last: a server that cannot keep up works on for a while
            for number, peer in alternate(peers, options.rounds):
                window = options.window if number >= 0 else 0.5
                cost = _measure_gateway(peer, window, streams)
                if number >= 0:
                    costs[peer.name, streams].append(cost)
    return _make_gateway_table(title, costs, waits)


def _start_gateways(stack: ExitStack, url: str) -> list[RunningPeer]:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    flags = ["--upstream-api", "chat", "--models-dir", directory, "--store", "sqlite://"]
    limits = ["--queue", 10_000, "--log-level", "warning"]
    command = ["serve", "--upstream", url, "--port", "PORT", *flags, *limits]
    return [
        start_server(stack, "dragoman", "dragoman", *command),
        start_litellm(stack, url),
        start_smg(stack, url),
    ]


def _measure_gateway(peer: RunningPeer, window: float, streams: int) -> float:
    """Return the µs of CPU time per token; infinite if streams do not begin, or break off."""
    tokens = int((GATEWAY_SECONDS + window) / PACE)
    try:
        result = _run(peer, window, counts_children=True, streams=streams, tokens=tokens)
    except subprocess.CalledProcessError:
        return float("inf")
    return result.cpu_ns / max(1, result.tokens) / 1000


def _make_gateway_table(
    title: str, costs: dict[tuple[str, int], list[float]], waits: dict[str, list[float]]
) -> Table:
    rows = []
    for name in dict.fromkeys(name for name, _ in costs):
        pairs = zip(waits[name], waits["worker"], strict=True)
        added = median([with_it - alone for with_it, alone in pairs])
        row = [name]
        for streams in GATEWAY_STREAMS:
            ours, values = costs["dragoman", streams], costs[name, streams]
            ratio = "" if name == "dragoman" else str(compute_ratio(values, ours))
            row += [f"{median(values):.1f}", ratio]
        rows.append([*row, f"{added:+.2f}"])
    heads = [
        (f"µs CPU per token, {streams} streams", "compared with dragoman")
        for streams in GATEWAY_STREAMS
    ]
    return Table(
        title,
        ["server", *(head for pair in heads for head in pair), "added to the first token, ms"],
        rows,
        [
            "The chat server plays a script, and its CPU time is not counted. Dragoman passes its "
            "chat API on (`--upstream-api chat`), as the others do, and parses each chunk. LiteLLM "
            "has one worker. smg is a program in Rust, with the policy `round_robin`; its clients "
            "get the chunks of the chat server as they are. `inf` means that in most rounds some "
            "streams had not begun after 30 s, or broke off."
        ],
    )


def compare_engines(options: BenchOptions) -> Table:
    """Compare the same script in a child process and on an upstream server."""
    costs: dict[tuple[str, bool], list[float]] = defaultdict(list)
    waits: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        worker = start_server(stack, "worker", "bench.upstream_worker", "PORT", PACE)
        server = "bench.upstream_server"
        url = f"http://127.0.0.1:{worker.port}"
        peers = [
            start_server(stack, "embedded", server, "PORT", PACE),
            start_server(stack, "upstream", server, "PORT", PACE, url),
        ]
        fast = start_server(stack, "fast worker", "bench.upstream_worker", "PORT", 0.0)
        url = f"http://127.0.0.1:{fast.port}"
        quick = [
            start_server(stack, "embedded", server, "PORT", 0.0),
            start_server(stack, "upstream", server, "PORT", 0.0, url),
            RunningPeer("worker alone", fast.port, fast.pid),
        ]
        for number, peer in alternate(peers, options.rounds):
            for counts_children in (False, True):
                result = _run(peer, options.window if number >= 0 else 0.5, counts_children)
                if number >= 0:
                    cost = result.cpu_ns / result.tokens / 1000
                    costs[peer.name, counts_children].append(cost)
        for number, peer in alternate(quick, options.rounds):
            found = _measure_first_tokens(peer)
            if number >= 0:
                waits[peer.name].append(found)
    return _make_table(costs, waits)


def _run(
    peer: RunningPeer,
    window: float,
    counts_children: bool,
    streams: int = STREAMS,
    tokens: int = ENDLESS,
) -> LoadResult:
    return run_client(
        Load(
            port=peer.port,
            pid=peer.pid,
            core=choose_cores()[1],
            bodies=[make_body(tokens)] * streams,
            window=window,
            counts_children=counts_children,
        )
    )


def _measure_first_tokens(peer: RunningPeer) -> float:
    """Return the median of the times to the first token, in milliseconds."""
    if peer.name == "worker alone":
        path, body = "/completion", WORKER_BODY
    else:
        path, body = "/v1/chat/completions", make_body(1)
    return 1000 * median(_time_first_token(peer.port, path, body) for _ in range(FIRST_TOKENS))


def _time_first_token(port: int, path: str, body: str) -> float:
    """Return the seconds from sending a request to its first text."""
    request = make_post(port, path, body)
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        started, received = time.perf_counter(), b""
        connection.sendall(request)
        while not FIRST_TEXT.search(received):
            data = connection.recv(1 << 16)
            if not data:
                raise SystemExit(f"no token from {path}: {received[:500]!r}")
            received += data
        return time.perf_counter() - started


def _make_table(costs: dict[tuple[str, bool], list[float]], waits: dict[str, list[float]]) -> Table:
    rows = []
    for name in ("embedded", "upstream"):
        row = [name]
        for counts_children in (False, True):
            ours, base = costs[name, counts_children], costs["embedded", counts_children]
            row += [f"{median(ours):.1f}", "" if ours is base else str(compute_ratio(ours, base))]
        pairs = zip(waits[name], waits["worker alone"], strict=True)
        added = median([with_us - alone for with_us, alone in pairs])
        rows.append([*row, f"{added:+.2f}"])
    return Table(
        f"(h) Dragoman in front of an upstream server, {STREAMS} streams, one token per 20 ms",
        [
            "engine",
            "µs CPU per token, serving process",
            "upstream / embedded",
            "µs CPU per token, with child processes",
            "upstream / embedded",
            "added to the first token, ms",
        ],
        rows,
        [
            "The same script runs in a child process of the server (`embedded`, as the default "
            "engine does) and on a scripted llama-server (`upstream`), whose CPU time is not "
            "counted. A child process sends the tokens of all streams in one message; an upstream "
            "server has a connection for each. The time to the first token is compared with that "
            "of the scripted llama-server without us."
        ],
    )
