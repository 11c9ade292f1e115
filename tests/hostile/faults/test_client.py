"""Clients that disconnect, vanish, drip or stall (faults 1 to 9)."""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect as connect_websocket

from dragoman.testing import Reply, ScriptedEngine
from tests.responses.remote_tools import THINKER, write_call
from tests.support.fault_clients import (
    ENDINGS,
    STREAMS,
    connect,
    encode_request,
    make_body,
    read_rest,
    read_until,
    reset,
    start_request,
)
from tests.support.hostile_http import HostileServer, serve_hostile
from tests.support.hostile_samples import make_websocket_message
from tests.support.mcp_servers import serve_tools
from tests.support.name_spaces import can_unshare, run_unshared
from tests.support.serving import poll_until
from tests.support.timing import measures_time

LONG = " ".join(f"word{number}" for number in range(5000))
SLOTS = 8
SENT_PIECES = 30_000  # of 500 bytes, more than the buffers of sockets hold
TRIALS = 6  # of each kind; `tests/hostile/heavy` has 1,000
ABORT_LIMIT = 0.1  # seconds from the disconnect to the end of the job, half of the times
Disconnect = Callable[[Any], None]


def make_engine(**settings: Any) -> ScriptedEngine:
    script = [Reply("Hello.", when="quick"), Reply(LONG, when="tell me")]
    return ScriptedEngine(script, **{"pace": 0.005, "slots": SLOTS} | settings)


@contextmanager
def serve_slots(**options: Any) -> Iterator[HostileServer]:
    """Serve an engine of a few slots, and check at the end that none of them is in use."""
    engine = options.pop("engine", None) or make_engine()
    with serve_hostile(engine, **options) as server:
        yield server
        gate = server.running.get_gate()
        poll_until(lambda: (gate.running, gate.waiting) == (0, 0))
        assert engine.active == 0
        poll_until(lambda: len(server.running.app.responder.runs) == 0)


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with serve_slots() as hostile:
        yield hostile


def wait_for_engine(
    server: HostileServer, condition: Callable[[ScriptedEngine], bool]
) -> ScriptedEngine:
    engine = server.engine
    server.running.run_coroutine(engine.wait_until(condition))
    return engine


def measure_abort(server: HostileServer, disconnect: Callable[[], None]) -> float:
    """Return how long it takes until the engine stops."""
    engine = server.engine
    cancelled = engine.cancelled
    started_at = time.monotonic()
    disconnect()
    wait_for_engine(server, lambda engine: engine.active == 0)
    seconds = time.monotonic() - started_at
    assert engine.cancelled > cancelled
    return seconds


def check_aborts(seconds: list[float]) -> None:
    """Half of the aborts must be quick: other programs use the machine, too."""
    ordered = sorted(seconds)
    print(f"aborted after {1000 * ordered[len(ordered) // 2]:.1f} ms, at most {ordered[-1]:.3f} s")
    assert ordered[len(ordered) // 2] <= ABORT_LIMIT


@pytest.mark.parametrize("path", STREAMS)
@measures_time
def test_fault_1_disconnect_in_a_stream_stops_the_engine(
    server: HostileServer, path: str, count_cases: Callable[[int], None]
) -> None:
    seconds = []
    for ending in list(ENDINGS) * (TRIALS // 2):
        with start_request(server.port, path, make_body(path, stream=True)) as client:
            read_until(client, STREAMS[path])
            seconds.append(measure_abort(server, partial(ENDINGS[ending], client)))
    check_aborts(seconds)
    count_cases(TRIALS)


@measures_time
def test_fault_1_disconnect_of_a_websocket_stops_the_engine(
    server: HostileServer, count_cases: Callable[[int], None]
) -> None:
    seconds = []
    message = json.dumps(make_websocket_message(make_body("/v1/responses")))
    for _ in range(TRIALS):
        url = f"ws://127.0.0.1:{server.port}/v1/responses"
        with connect_websocket(url, proxy=None) as websocket:
            websocket.send(message)
            while "output_text.delta" not in str(websocket.recv(20)):
                pass
            seconds.append(measure_abort(server, partial(reset, websocket.socket)))
    check_aborts(seconds)
    count_cases(TRIALS)


@pytest.mark.parametrize("path", STREAMS)
@measures_time
def test_fault_2_disconnect_before_a_whole_response_stops_the_engine(
    server: HostileServer, path: str, count_cases: Callable[[int], None]
) -> None:
    seconds = []
    for ending in list(ENDINGS) * (TRIALS // 2):
        started = server.engine.started
        with start_request(server.port, path, make_body(path)) as client:
            wait_for_engine(server, lambda engine: engine.started > started)  # noqa: B023
            seconds.append(measure_abort(server, partial(ENDINGS[ending], client)))
    check_aborts(seconds)
    count_cases(TRIALS)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("streamed", [False, True])
def test_fault_3_disconnect_in_the_queue_delays_nobody(
    ending: str, streamed: bool, count_cases: Callable[[int], None]
) -> None:
    engine = make_engine(slots=1, pace=None)
    with serve_slots(engine=engine) as server, ExitStack() as stack:
        gate, path = server.running.get_gate(), "/v1/chat/completions"
        body = make_body(path, stream=True)
        first = stack.enter_context(start_request(server.port, path, body))
        wait_for_engine(server, lambda engine: engine.active == 1)
        queued = [
            stack.enter_context(start_request(server.port, path, make_body(path, stream=streamed)))
            for _ in range(TRIALS)
        ]
        poll_until(lambda: gate.waiting == TRIALS)
        for client in queued:
            ENDINGS[ending](client)
        poll_until(lambda: gate.waiting == 0)
        assert (engine.started, engine.active, engine.cancelled) == (1, 1, 0)
        for number in (1, 2, 3):  # the first one goes on, token by token
            server.running.loop.call_soon_threadsafe(engine.tick)
            read_until(first, f"word{number - 1}".encode())
        first.close()
    count_cases(TRIALS)


@pytest.mark.parametrize("ending", ENDINGS)
def test_fault_4_disconnect_during_an_upload_leaves_nothing(
    server: HostileServer, ending: str, count_cases: Callable[[int], None]
) -> None:
    started = server.engine.started
    state = server.running._server.server_state
    for path in STREAMS:
        request = encode_request(path, make_body(path, "tell me " * 20_000))
        for sent in (10, 80, 5_000, len(request) - 1):
            with connect(server.port) as client:
                client.sendall(request[:sent])
                ENDINGS[ending](client)
    poll_until(lambda: not state.connections)
    assert server.engine.started == started
    count_cases(4 * len(STREAMS))


CHILDREN: dict[str, tuple[str, dict[str, Any]]] = {
    "four choices": ("/v1/chat/completions", {"n": 4}),
    "prompts with choices": ("/v1/completions", {"n": 2, "prompt": ["tell me a", "tell me b"]}),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", CHILDREN)
@measures_time
def test_fault_5_disconnect_stops_all_choices_and_prompts(
    server: HostileServer, case: str, streamed: bool
) -> None:
    path, fields = CHILDREN[case]
    body = make_body(path, **fields, stream=streamed)
    started = server.engine.started
    with start_request(server.port, path, body) as client:
        jobs = 2 if "prompt" in fields else 1
        wait_for_engine(server, lambda engine: engine.started == started + jobs)
        check_aborts([measure_abort(server, lambda: reset(client))])


@pytest.mark.parametrize("streamed", [False, True])
def test_fault_5_disconnect_stops_a_loop_of_tool_calls(streamed: bool) -> None:
    script = [Reply(write_call("calc__slow"), when="Slowly"), Reply("Done.")]
    with (
        serve_tools() as tools,
        serve_hostile(
            ScriptedEngine(script, tokens=True), mcp_hosts=(tools.host,), chat_template=str(THINKER)
        ) as server,
    ):
        tool = {"type": "mcp", "server_label": "calc", "server_url": tools.url}
        body = make_body("/v1/responses", "Slowly", tools=[tool | {"require_approval": "never"}])
        with start_request(server.port, "/v1/responses", body | {"stream": streamed}) as client:
            assert tools.log.slow_started.wait(20)
            reset(client)
        assert tools.log.slow_cancelled.wait(20)
        poll_until(lambda: len(server.running.app.responder.runs) == 0)
        assert server.engine.started == 1


HALF_OPEN = """
import fcntl, socket, struct, sys
def set_loopback(is_up):
    with socket.socket() as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x49 if is_up else 0x48))
set_loopback(True)
from tests.hostile.faults.test_client import *
engine = make_engine()
with serve_scripted(engine, stall=0.5, ping=0.2, log_level="error") as server:
    client = connect(server.port)
    path = "/v1/chat/completions"
    client.sendall(encode_request(path, make_body(path, stream=True)))
    read_until(client, STREAMS[path])
    set_loopback(False)  # from now on no packet arrives, in either direction
    started_at = time.monotonic()
    server.run_coroutine(engine.wait_until(lambda engine: engine.active == 0, 60))
    print(f"noticed after {time.monotonic() - started_at:.1f} s")
    assert engine.cancelled == 1
    poll_until(lambda: server.get_gate().running == 0)
    set_loopback(True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare("net"), reason="needs a network name space of its own")
def test_fault_6_peer_that_vanishes_is_noticed() -> None:
    """The network goes away in the middle of a stream: the client sends neither FIN nor RST."""
    script = "from tests.support.serving import serve_scripted\n" + HALF_OPEN
    result = run_unshared("net", sys.executable, "-c", script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("noticed after")


DRIPPED = {
    "request line": (b"", b"GET /v1/models HTTP/1.1\r\n" * 100),
    "headers": (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n", b"x-a: b\r\n" * 100),
    "body": (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n",
        b"{" + b" " * 500,
    ),
    "chunks": (
        b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1\r\n \r\n" * 100,
    ),
}


def test_fault_7_slow_requests_are_refused_in_time(count_cases: Callable[[int], None]) -> None:
    """Each byte comes before any timeout of a single read, but the whole never does."""
    with serve_slots(receive_timeout=0.5) as server, ExitStack() as stack:
        clients = {name: stack.enter_context(connect(server.port)) for name in DRIPPED}
        rest = {name: drip for name, (_, drip) in DRIPPED.items()}
        for name, (head, _) in DRIPPED.items():
            clients[name].sendall(head)
        started_at = time.monotonic()
        while clients:
            for name, client in list(clients.items()):
                if select.select([client], [], [], 0.02)[0]:
                    received = read_rest(client)  # ends, so the connection is closed, too
                    assert received.startswith(b"HTTP/1.1 408 "), (name, received)
                    del clients[name]
                else:
                    client.sendall(rest[name][:1])
                    rest[name] = rest[name][1:]
            assert time.monotonic() - started_at < 20
        assert server.send("GET", "/health/live").status_code == 200
        assert server.engine.started == 0
    count_cases(len(DRIPPED))


@pytest.mark.parametrize("path", STREAMS)
def test_fault_8_reader_that_stalls_is_dropped(path: str) -> None:
    script = [Reply("Hello.", when="quick"), Reply(pieces=("word " * 100,) * SENT_PIECES)]
    engine = ScriptedEngine(script, slots=2)
    with serve_slots(engine=engine, stall=0.3) as server:
        state = server.running._server.server_state
        with connect(server.port, buffer=4096) as client:
            client.sendall(encode_request(path, make_body(path, stream=True)))
            wait_for_engine(server, lambda engine: engine.active == 1)
            other = server.send("POST", path, json=make_body(path, "quick"))
            assert "Hello." in other.text
            wait_for_engine(server, lambda engine: engine.active == 0)
            server.client.close()
            poll_until(lambda: not state.connections)
            received = 0
            with suppress(ConnectionResetError):
                while data := client.recv(65536):
                    received += len(data)
        assert received < 500 * SENT_PIECES  # it was cut off
        server.client = httpx.Client(base_url=server.url)


def test_fault_9_thousand_clients_connect_and_vanish(count_cases: Callable[[int], None]) -> None:
    starts = [b"", b"G", b"POST /v1/chat/completions HTTP/1.1\r\nhost: loc", b"\x16\x03\x01", b"\0"]
    path = "/v1/chat/completions"
    starts.append(encode_request(path, make_body(path, stream=True)))
    with serve_slots() as server:
        state = server.running._server.server_state
        before = count_resources(server)
        for number in range(1000):
            client = connect(server.port)
            client.sendall(starts[number % len(starts)])
            (reset if number % 2 else type(client).close)(client)
            if number % 100 == 0:
                assert server.send("GET", "/health/live").status_code == 200
        server.client.close()
        poll_until(lambda: not state.connections and server.engine.active == 0)
        server.client = httpx.Client(base_url=server.url)
        server.check_alive()
        after = count_resources(server)
        assert after[0] <= before[0] + 3  # file descriptors
        assert after[1] <= before[1] + 3  # tasks
    count_cases(1000)


def count_resources(server: HostileServer) -> tuple[int, int]:
    """Count the open files of this process and the tasks on the loop of the server."""

    async def count_tasks() -> int:
        return len(asyncio.all_tasks())

    return len(list(Path("/proc/self/fd").iterdir())), server.running.run_coroutine(count_tasks())
