"""What a server in front of another one costs: CPU time per chunk, and time to the first token."""

from __future__ import annotations

import json
import re
import socket
import time
from collections import defaultdict
from contextlib import ExitStack
from statistics import median

from bench.http_serving import ENDLESS, alternate, make_body, start_server
from bench.measure import Load, LoadResult, RunningPeer, choose_cores, compute_ratio, run_client
from bench.report import BenchOptions, Table

STREAMS = 50
PACE = 0.02
FIRST_TOKENS = 40  # requests, one after the other, of one round
FIRST_TEXT = re.compile(rb'"content":"[^"]')
WORKER_BODY = json.dumps({"prompt": [72, 105], "n_predict": 1, "stream": True})


def measure_upstream(options: BenchOptions) -> Table:
    """(h) The same script in a child process and on an upstream server."""
    costs: dict[str, list[float]] = defaultdict(list)
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
            result = _run(peer, [make_body(ENDLESS)] * STREAMS, options.window)
            if number >= 0:
                costs[peer.name].append(result.cpu_ns / result.tokens / 1000)
        for number, peer in alternate(quick, options.rounds):
            found = _measure_first_tokens(peer)
            if number >= 0:
                waits[peer.name].append(found)
    return _make_table(costs, waits)


def _run(peer: RunningPeer, bodies: list[str], window: float) -> LoadResult:
    return run_client(
        Load(
            port=peer.port,
            pid=peer.pid,
            core=choose_cores()[1],
            bodies=bodies,
            window=window,
            counts_children=False,
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
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
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


def _make_table(costs: dict[str, list[float]], waits: dict[str, list[float]]) -> Table:
    rows = []
    for name in ("embedded", "upstream"):
        ratio = "" if name == "embedded" else str(compute_ratio(costs[name], costs["embedded"]))
        others = zip(waits[name], waits["worker alone"], strict=True)
        added = median([ours - alone for ours, alone in others])
        rows.append([name, f"{median(costs[name]):.1f}", ratio, f"{added:+.2f}"])
    return Table(
        f"(h) Dragoman in front of an upstream server, {STREAMS} streams, one token per 20 ms",
        ["engine", "µs CPU per token", "upstream / embedded", "added to the first token, ms"],
        rows,
        [
            "The same script runs in a child process of the server (`embedded`) and on a scripted "
            "llama-server (`upstream`). CPU time is that of the serving process alone. The time to "
            "the first token is compared with that of the scripted llama-server without us."
        ],
    )
