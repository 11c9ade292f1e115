"""Mutation fuzzing: whatever a client sends, the server answers as its wire API says.

The number of mutants and the seed come from FUZZ_COUNT and FUZZ_SEED (`make test-fuzz`). A failure
prints the number of its mutant: `FUZZ_SEED=1 FUZZ_ONLY=1234` sends that one alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from dragoman.http.pages.openapi import render_document
from dragoman.testing import Reply, ScriptedEngine
from tests.responses.remote_tools import THINKER, write_call
from tests.support.fault_clients import read_stream
from tests.support.hostile_http import (
    ADMIN,
    KEYS,
    OTHER,
    USER,
    HostileServer,
    RawResponse,
    check_no_leaks,
    serve_hostile,
)
from tests.support.hostile_samples import SAMPLES
from tests.support.mutations import METHODS, Mutant, MutationContext, make_mutant
from tests.support.process_cost import read_resident_bytes
from tests.support.recorded_requests import list_recorded

COUNT = int(os.environ.get("FUZZ_COUNT", "5000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
ONLY = os.environ.get("FUZZ_ONLY")  # the number of one mutant, to send it alone
AT_ONCE = 8
REQUEST_SECONDS = 120.0
GROWTH = 100 << 20  # bytes of memory, however many mutants there are
FAILED = "failed"  # counted like a status
CANARY = "what the other key has stored"
SOCKET_SHARE = 25  # one in so many mutants is sent over a socket, the others to the app itself
FINAL_TYPES = ("response.completed", "response.failed", "response.incomplete", "error")
CLOSE_CODES = (1003, 1007, 1008, 1009)  # for what is no text, no policy and too much
STREAM_PATHS = {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[HostileServer]:
    script = [Reply(write_call("weather", city="Rome"), when="tomorrow"), Reply("Hello there!")]
    engine = ScriptedEngine(script, tokens=True, grammars=True, context=4000, slots=AT_ONCE)
    options: dict[str, Any] = {"chat_template": str(THINKER), "store_size": 16 << 20, **KEYS}
    with serve_hostile(engine, **options) as hostile:
        yield hostile


def make_context(server: HostileServer) -> MutationContext:
    document = render_document(list(server.routes))
    names = sorted(set(re.findall(r'"(\w{1,40})": ?\{', document.decode())))
    return MutationContext(list_recorded(server.routes), names, list(create_ids(server)))


def create_ids(server: HostileServer) -> Iterator[str]:
    """Create objects of two owners; yield the ids of both."""
    for key in (USER, OTHER):
        text = CANARY if key == OTHER else "Hi"
        metadata = {"metadata": {"text": text}}
        chat = SAMPLES["/v1/chat/completions"] | {"store": True} | metadata
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/responses", SAMPLES["/v1/responses"] | metadata),
            ("/v1/conversations", SAMPLES["/v1/conversations"] | metadata),
        ):
            created = server.send("POST", path, key=key, json=body).json()
            yield created["id"]
            yield from (item["id"] for item in created.get("output", ()))


def test_mutated_requests(
    server: HostileServer, add_figures: Callable[..., None], count_cases: Callable[[int], None]
) -> None:
    context = make_context(server)
    numbers = [int(ONLY)] if ONLY else list(range(COUNT))
    warm_up, statuses = numbers[: len(numbers) // 10], Counter[str]()
    print(f"\nseed {SEED}, {len(numbers):,} mutants of {len(context.recorded)} requests")
    started_at = time.monotonic()
    statuses += send_all(server, context, warm_up)
    before = read_resident_bytes()
    statuses += send_all(server, context, numbers[len(warm_up) :])
    seconds = time.monotonic() - started_at
    growth = max(0, read_resident_bytes() - before)
    print(f"{seconds:.0f} s, {len(numbers) / seconds:.0f} per second, +{growth >> 20} MB")
    print(", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items())))
    server.check_alive()
    assert not statuses[FAILED], "see the mutants above"
    assert growth < GROWTH
    assert statuses["200"] or ONLY
    count_cases(len(numbers))
    if "FUZZ_COUNT" in os.environ:
        add_figures(
            "fuzz",
            seed=SEED,
            mutated_requests=len(numbers),
            seconds=round(seconds),
            growth_of_memory_in_MB=growth >> 20,
            **{f"status {status}": count for status, count in sorted(statuses.items())},
        )


def send_all(server: HostileServer, context: MutationContext, numbers: list[int]) -> Counter[str]:
    """Send mutants, some at once; return how often each status was the answer."""
    statuses: Counter[str] = Counter()
    websocket_mutants: list[Mutant] = []
    socket_mutants: list[Mutant] = []

    async def work(waiting: Iterator[int]) -> None:
        for number in waiting:
            mutant = make_mutant(SEED, number, context)
            is_http = mutant.method in METHODS[:-2]  # else the parser refuses it, path unseen
            if mutant.is_websocket or (is_http and number % SOCKET_SHARE == 0):
                (websocket_mutants if mutant.is_websocket else socket_mutants).append(mutant)
                continue
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    response = await call_app(server, mutant)
                check_response(server, mutant, response)
            except Exception as error:
                report(mutant, error)
                statuses[FAILED] += 1
                continue
            statuses[str(response.status)] += 1

    async def work_together() -> None:
        waiting = iter(numbers)
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work(waiting))

    asyncio.run_coroutine_threadsafe(work_together(), server.running.loop).result()
    for mutant in socket_mutants:
        statuses[send_over_socket(server, mutant)] += 1
    return statuses + send_over_websockets(server, websocket_mutants)


def report(mutant: Mutant, error: BaseException) -> None:
    print(f"\n{type(error).__name__}: {str(error)[:500]}")
    print(f"mutant {mutant.number} of seed {SEED}, made of {mutant.route}:")
    print(f"{mutant.method} {mutant.path} {mutant.headers}\n{mutant.body[:2000]!r}")


async def call_app(server: HostileServer, mutant: Mutant) -> RawResponse:
    """Send a mutant to the app as an HTTP server does."""
    path, _, query = mutant.path.partition("?")
    key = ADMIN if "/admin" in mutant.path else USER
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {key}".encode())]
    own = {name for name, _ in mutant.headers}
    headers = [pair for pair in headers if pair[0].decode() not in own]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in mutant.headers]
    scope = {
        "type": "http",
        "method": mutant.method,
        "path": unquote(path, errors="surrogateescape"),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "scheme": "http",
        "http_version": "1.1",
    }
    halves = [mutant.body[: len(mutant.body) // 2], mutant.body[len(mutant.body) // 2 :]]
    incoming = [
        {"type": "http.request", "body": halves[1], "more_body": False},
        {"type": "http.request", "body": halves[0], "more_body": True},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop() if incoming else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    await server.running.app(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    assert not sent[-1].get("more_body", False), "the response does not end"
    fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return RawResponse(sent[0]["status"], fields, body)


def send_over_socket(server: HostileServer, mutant: Mutant) -> str:
    key = ADMIN if "/admin" in mutant.path else USER
    own = {name for name, _ in mutant.headers}
    headers = list(mutant.headers)
    headers += [] if "authorization" in own else [("authorization", f"Bearer {key}")]
    try:
        response = server.send_raw(
            mutant.method, mutant.path, headers, mutant.body, has_host="host" in own, allowed={503}
        )
    except AssertionError as error:
        report(mutant, error)
        return FAILED
    assert CANARY.encode() not in response.body
    return str(response.status)


def check_response(server: HostileServer, mutant: Mutant, response: RawResponse) -> None:
    """Check an answer: its error object, or the stream or JSON that it is."""
    allowed = {503} if "retry-after" in response.headers else set()
    server.check(response, mutant.method, mutant.path, mutant.sent_text, allowed)
    assert CANARY.encode() not in response.body
    kind = response.headers.get("content-type", "")
    if response.status != 200 or mutant.method == "HEAD":
        return
    if kind.startswith("text/event-stream"):
        path = "/v1" + mutant.path.partition("?")[0].removeprefix("/v1")
        name = path if path in STREAM_PATHS else "/v1/responses"
        end = read_stream(name.replace("/infill", "/v1/completions"), response.body.decode())
        assert end.is_complete or "infill" in path, "the stream has no end"
        assert end.error is None or end.error != "engine_error"
    elif kind.startswith("application/json"):
        json.loads(response.body)


# WebSockets


def send_over_websockets(server: HostileServer, mutants: list[Mutant]) -> Counter[str]:
    """Send mutated messages, many over one connection while the server keeps it open."""
    statuses: Counter[str] = Counter()
    waiting = iter(mutants)
    mutant = next(waiting, None)
    while mutant is not None:
        with open_websocket(server) as connection:
            while mutant is not None and connection.close_code is None:
                try:
                    statuses[f"WebSocket {send_message(connection, mutant)}"] += 1
                except (AssertionError, TimeoutError, ConnectionClosed) as error:
                    report(mutant, error)
                    statuses[FAILED] += 1
                mutant = next(waiting, None)
    return statuses


def open_websocket(server: HostileServer) -> ClientConnection:
    headers = {"authorization": f"Bearer {USER}"}
    url = f"ws://127.0.0.1:{server.port}/v1/responses"
    return connect_websocket(url, additional_headers=headers, proxy=None, max_size=None)


def send_message(connection: ClientConnection, mutant: Mutant) -> str:
    """Send one message and read its events; return the type of the last one."""
    try:
        connection.send(mutant.body, text=True)
        while True:
            text = str(connection.recv(timeout=REQUEST_SECONDS))
            event = json.loads(text)
            if event["type"] in FINAL_TYPES:
                break
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd is not None else 0
        if code not in CLOSE_CODES:
            raise
        return f"closed with {code}"
    if event["type"] == "error":
        check_no_leaks(text, mutant.sent_text)
        assert event.get("status", 400) < 500 or event.get("status") == 503, text
    return str(event["type"])
