"""What it costs to begin a request, and what running streams notice of it.

A chat of one token costs little more than its beginning and its end. While many requests begin at
once, the tokens of running streams must not wait for all of them.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import defaultdict
from contextlib import ExitStack, closing
from statistics import median, quantiles

from bench.http_serving import ENDLESS, alternate, make_body, start_server
from bench.measure import (
    RunningPeer,
    choose_cores,
    compute_ratio,
    make_post,
    pin_to_core,
    read_cpu_ns,
)
from bench.report import BenchOptions, Table, Tables

SERVERS = {"dragoman": "bench.scripted_server", "fastapi": "bench.fastapi_server"}
CHATS = 500  # of one token, one after the other, in one measurement
PACE = 0.02  # seconds between the tokens of running streams
RUNNING, BEGINNING = 8, 64  # streams, and requests that begin at the same time
WAVES = 4
END = b"0\r\n\r\n"


def measure_request_start(options: BenchOptions) -> Tables:
    """(k) Server CPU time of a chat of one token, and gaps in streams while requests begin."""
    return Tables([measure_short_chats(options), measure_gaps(options)])


def send_chat(connection: socket.socket, peer: RunningPeer, tokens: int) -> None:
    connection.sendall(make_post(peer.port, "/v1/chat/completions", make_body(tokens)))


def open_connection(peer: RunningPeer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", peer.port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def measure_short_chats(options: BenchOptions) -> Table:
    costs: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        peers = [start_server(stack, name, module, "PORT", 0.0) for name, module in SERVERS.items()]
        for number, peer in alternate(peers, options.rounds):
            with pin_to_core(choose_cores()[1]), closing(open_connection(peer)) as connection:
                before = read_cpu_ns(peer.pid)
                for _ in range(CHATS):
                    send_chat(connection, peer, 1)
                    received = b""
                    while not received.endswith(END):
                        received += connection.recv(1 << 16)
                if number >= 0:
                    costs[peer.name].append((read_cpu_ns(peer.pid) - before) / CHATS / 1000)
    rows = [
        [
            name,
            f"{median(costs[name]):.0f}",
            "" if name == "dragoman" else str(compute_ratio(costs["dragoman"], costs[name])),
        ]
        for name in SERVERS
    ]
    return Table(
        "(k) Server CPU time of a chat of one token, streamed",
        ["server", "µs CPU per chat", "dragoman / server"],
        rows,
        ["One chat after the other on one connection. Lower is better."],
    )


def measure_gaps(options: BenchOptions) -> Table:
    gaps: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        peers = [
            start_server(stack, name, module, "PORT", PACE) for name, module in SERVERS.items()
        ]
        for number, peer in alternate(peers, options.rounds):
            with pin_to_core(choose_cores()[1]):
                measured = watch_streams(peer)
            if number >= 0:
                gaps[peer.name] += measured
    rows = []
    for name in SERVERS:
        cuts = quantiles(gaps[name], n=100)
        rows.append(
            [name, *(f"{1000 * cuts[i]:.1f}" for i in (49, 98)), f"{cuts[98] / cuts[49]:.2f}×"]
        )
    return Table(
        f"(k) Gaps between tokens of {RUNNING} streams while {BEGINNING} requests begin at once",
        ["server", "median, ms", "p99, ms", "p99 / median"],
        rows,
        [f"A token every {1000 * PACE:.0f} ms; the requests begin {WAVES} times in each round."],
    )


def watch_streams(peer: RunningPeer) -> list[float]:
    """Let requests begin beside running streams; return the gaps between tokens of the latter."""
    gaps: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:

        def open_chat(tokens: int) -> socket.socket:
            connection = stack.enter_context(closing(open_connection(peer)))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ, tokens)
            return connection

        def read_until(deadline: float) -> None:
            while (rest := deadline - time.perf_counter()) > 0:
                for key, _ in selector.select(rest):
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    data, now = connection.recv(1 << 16), time.perf_counter()
                    if key.data == 1:
                        continue
                    if last := last_read.get(connection):
                        gaps.append(now - last)
                    last_read[connection] = now
                    assert data

        last_read: dict[socket.socket, float] = {}
        for _ in range(RUNNING):
            send_chat(open_chat(ENDLESS), peer, ENDLESS)
        read_until(time.perf_counter() + 0.5)
        gaps.clear()
        for _ in range(WAVES):
            beginning = [open_chat(1) for _ in range(BEGINNING)]
            for connection in beginning:
                send_chat(connection, peer, 1)
            read_until(time.perf_counter() + 0.25)
            for connection in beginning:
                selector.unregister(connection)
    return gaps
