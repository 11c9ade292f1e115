"""Disconnects, queueing, slow clients and shutdown: no run outlives its client."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from dragoman.http.cancellation import RunRegistry, watch_awaitable
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Job, Step
from tests.support.process_cost import read_resident_bytes
from tests.support.serving import (
    RunningServer,
    make_chat,
    make_scripted_app,
    parse_events,
    poll_until,
    serve_scripted,
)
from tests.support.timing import measures_time

pytestmark = pytest.mark.slow

LONG = " ".join(f"word{i}" for i in range(2000))


def wait_for_engine(
    server: RunningServer, engine: ScriptedEngine, condition: Callable[[ScriptedEngine], bool]
) -> None:
    server.run_coroutine(asyncio.wait_for(engine.wait_until(condition), 150))


def make_request(path: str = "/v1/chat/completions", **fields: Any) -> bytes:
    body = json.dumps(make_chat(**fields)).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def open_connection(server: RunningServer, data: bytes) -> Any:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(data)
        yield client


@pytest.mark.parametrize("streamed", [True, False])
@measures_time
def test_disconnect_stops_the_engine(streamed: bool) -> None:
    engine = ScriptedEngine(Reply(LONG), pace=0.005)
    with serve_scripted(engine) as server:
        with open_connection(server, make_request(stream=streamed)) as client:
            wait_for_engine(server, engine, lambda engine: engine.steps > 3)
            client.close()
        closed_at = time.monotonic()
        wait_for_engine(server, engine, lambda engine: engine.active == 0)
        assert time.monotonic() - closed_at < 1
        assert engine.cancelled == 1
        steps = engine.steps
        server.run_coroutine(asyncio.sleep(0.05))
        assert engine.steps == steps
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        assert server.app.metrics.errors["client_disconnected"] == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_pipelined_request_does_not_hide_a_disconnect(streamed: bool) -> None:
    engine = ScriptedEngine(Reply("one two", hang_at=1))
    pipelined = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with serve_scripted(engine) as server:
        for parts in ([pipelined], [pipelined[:20], pipelined[20:]], [b"garbage\r\n\r\n"]):
            with open_connection(server, make_request(stream=streamed) + parts[0]) as client:
                wait_for_engine(server, engine, lambda engine: engine.active == 1)
                for part in parts[1:]:
                    client.sendall(part)
                client.close()
            wait_for_engine(server, engine, lambda engine: engine.active == 0)
        poll_until(lambda: len(server.app.responder.runs) == 0)


def test_pipelined_request_does_not_disturb_the_response() -> None:
    engine = ScriptedEngine(Reply("one two three"), pace=None)
    with serve_scripted(engine, receive_timeout=0.2) as server:
        with open_connection(server, make_request(stream=True) + b"GET / HT") as client:
            wait_for_engine(server, engine, lambda engine: engine.active == 1)
            for _ in range(5):
                server.loop.call_soon_threadsafe(engine.tick)
            received = b""
            while data := client.recv(65536):  # the connection is closed after the response
                received += data
        assert received.count(b"HTTP/1.1") == 1
        assert join_content(
            b"".join(decode_chunks(received.split(b"\r\n\r\n", 1)[1])).decode()
        ) == ("one two three")


def test_engine_that_raises_cancelled_error_gets_500() -> None:
    class Cancelling:
        async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
            if "late" in str(job.prompt):
                yield Step(text="a", tokens=1)
            raise asyncio.CancelledError

    with serve_scripted(Cancelling()) as server:
        url = f"{server.url}/v1/chat/completions"
        for text in ("early", "late"):
            whole = httpx.post(url, json=make_chat(text))
            assert whole.status_code == 500
            assert whole.json()["error"]["code"] == "engine_error"
        assert parse_events(httpx.post(url, json=make_chat("late", stream=True)))[-1]["error"]


@measures_time
def test_many_prompts_with_many_choices_do_not_freeze_the_server() -> None:
    with serve_scripted(ScriptedEngine("x")) as server:
        body = {"model": "scripted", "prompt": ["hi"] * 16, "n": 128, "max_tokens": 1}
        started = time.monotonic()
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert len(response["choices"]) == 2048
        assert time.monotonic() - started < 20


def test_usage_does_not_depend_on_how_fast_a_client_reads() -> None:
    script = Reply("word " * 3000 + "STOP " + "more " * 3000, chunks=5)
    fields = {"stop": "STOP", "stream": True, "stream_options": {"include_usage": True}}
    with serve_scripted(ScriptedEngine(script)) as server:
        body = json.dumps({"model": "scripted", "prompt": ["a", "b"], "max_tokens": 9999, **fields})
        quick = httpx.post(f"{server.url}/v1/completions", content=body, timeout=60)
        usage = parse_events(quick)[-1]["usage"]
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(f"{head}\r\n\r\n{body}".encode())
            received = b""
            client.settimeout(20)
            while b"data: [DONE]" not in received:
                received += client.recv(2048)
        text = b"".join(decode_chunks(received.split(b"\r\n\r\n", 1)[1])).decode()
        last = next(frame for frame in text.split("\n\n") if '"choices":[]' in frame)
        assert json.loads(last[6:])["usage"] == usage
        assert usage["completion_tokens"] == 2 * 3001


def test_disconnect_stops_every_choice_and_prompt() -> None:
    engine = ScriptedEngine(Reply(LONG), pace=0.005)
    with serve_scripted(engine) as server:
        body = json.dumps({"model": "scripted", "prompt": ["a", "b"], "n": 3, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        request = head.replace("host: x", "host: localhost").encode() + body.encode()
        with open_connection(server, request) as client:
            wait_for_engine(server, engine, lambda engine: engine.active == 2 and engine.steps > 5)
            client.close()
        wait_for_engine(server, engine, lambda engine: engine.active == 0)


def test_disconnect_before_the_first_token_is_not_a_server_error() -> None:
    engine = ScriptedEngine(Reply("never sent", hang_at=0))
    with serve_scripted(engine) as server:
        with open_connection(server, make_request(stream=True)) as client:
            wait_for_engine(server, engine, lambda engine: engine.active == 1)
            client.close()
        wait_for_engine(server, engine, lambda engine: engine.active == 0)
        assert httpx.get(f"{server.url}/health/ready").status_code == 200


def test_disconnect_in_the_queue_affects_no_other_request() -> None:
    engine = ScriptedEngine([Reply("first " * 20, when="one"), Reply("other")], pace=None, slots=1)
    with serve_scripted(engine) as server:
        gate = server.get_gate()
        with open_connection(server, make_request(text="one", stream=True)):
            wait_for_engine(server, engine, lambda engine: engine.active == 1)
            with open_connection(server, make_request(text="two", stream=True)) as queued:
                poll_until(lambda: gate.waiting == 1)
                queued.close()
                poll_until(lambda: gate.waiting == 0)
            assert engine.started == 1
            assert engine.active == 1


def test_full_queue_gets_429_with_retry_after() -> None:
    engine = ScriptedEngine(Reply("x", hang_at=0), slots=1)
    with serve_scripted(engine, queue=1) as server:
        gate = server.get_gate()
        with (
            open_connection(server, make_request(stream=True)),
            open_connection(server, make_request(stream=True)),
        ):
            poll_until(lambda: gate.waiting == 1)
            for streamed in (True, False):
                response = httpx.post(
                    f"{server.url}/v1/chat/completions", json=make_chat(stream=streamed)
                )
                assert response.status_code == 429
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "rate_limit_exceeded"
            assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert server.app.metrics.errors["rate_limit_exceeded"] == 2


def test_silent_stream_gets_keep_alive_comments() -> None:
    engine = ScriptedEngine(Reply("done"), pace=None)
    with (
        serve_scripted(engine, patience=0.02, ping=0.05) as server,
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as response,
    ):
        assert response.status_code == 200
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(8)]
        assert seen.count(": keep-alive") >= 2
        assert not any(line.startswith(": ping") for line in seen)


def test_chunks_are_sent_as_they_are_generated() -> None:
    engine = ScriptedEngine(Reply("a b c"), pace=None)
    with (
        serve_scripted(engine) as server,
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as response,
    ):
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        assert '"role"' in next(lines)
        for word in ("a", " b", " c"):
            server.loop.call_soon_threadsafe(engine.tick)
            assert json.loads(next(lines)[6:])["choices"][0]["delta"] == {"content": word}


def test_slow_client_does_not_delay_others_and_gets_everything() -> None:
    text = "x" * 200
    engine = ScriptedEngine([Reply(LONG * 20, when="slow", chunks=64), Reply(text)])
    with serve_scripted(engine) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(make_request(text="slow", stream=True))
            wait_for_engine(server, engine, lambda engine: engine.steps > 50)
            for _ in range(20):
                other = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat("quick"))
                assert other.json()["choices"][0]["message"]["content"] == text
            received = b""
            client.settimeout(20)
            while b"data: [DONE]" not in received:
                received += client.recv(65536)
        raw = b"".join(decode_chunks(received.split(b"\r\n\r\n", 1)[1]))
        frames = [frame for frame in raw.decode().split("\n\n") if frame.startswith("data: {")]
        deltas = [json.loads(frame[6:])["choices"][0]["delta"] for frame in frames]
        assert "".join(delta.get("content", "") for delta in deltas) == LONG * 20


def decode_chunks(data: bytes) -> list[bytes]:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16) if size else 0
        if not length:
            break
        parts.append(rest[:length])
        data = rest[length + 2 :]
    return parts


def test_client_that_reads_nothing_is_dropped() -> None:
    engine = ScriptedEngine(Reply(LONG * 400, chunks=512))
    with serve_scripted(engine, stall=0.2) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(make_request(stream=True))
        wait_for_engine(server, engine, lambda engine: engine.started == 1)
        wait_for_engine(server, engine, lambda engine: engine.active == 0)
        assert engine.cancelled == 1
        poll_until(lambda: not server._server.server_state.connections)


def test_disconnect_at_the_end_of_a_run_interrupts_nothing_else() -> None:
    async def scenario() -> None:
        disconnected = asyncio.get_running_loop().create_future()
        watch = partial(watch_awaitable, disconnected)
        with RunRegistry().track(watch):
            disconnected.set_result(None)  # takes effect in the next iteration of the event loop
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "send_limit"),
    [
        *((make_chat(stream=True), send_limit) for send_limit in (0, 1, 3)),
        *((make_chat(), send_limit) for send_limit in (0, 1)),
        *(({}, send_limit) for send_limit in (0, 1)),  # which is rejected
    ],
)
def test_failed_send_counts_as_a_disconnect(
    body: Any, send_limit: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_scripted_app(ScriptedEngine("one two three four"))
    incoming = [{"type": "http.request", "body": json.dumps(body).encode()}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop() if incoming else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if len(sent) >= send_limit:
            raise BrokenPipeError
        sent.append(message)

    async def scenario() -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        await app(scope, receive, send)
        await app.aclose()

    asyncio.run(scenario())
    assert app.metrics.errors == {"client_disconnected": 1}
    assert "failed" not in caplog.text


def test_client_that_does_not_read_a_whole_response_is_dropped() -> None:
    engine = ScriptedEngine(Reply(LONG * 400, chunks=100_000))
    with serve_scripted(engine, stall=0.2) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(make_request())
        wait_for_engine(server, engine, lambda engine: engine.started == 1 and engine.active == 0)
        poll_until(lambda: not server._server.server_state.connections)


def test_draining_lets_streams_finish_and_rejects_new_requests() -> None:
    engine = ScriptedEngine(Reply("a b c"), pace=None)
    with serve_scripted(engine) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            next(lines)
            server._server.handle_exit(15, None)
            poll_until(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            rejected = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
            assert rejected.status_code == 503
            assert rejected.json()["error"]["code"] == "draining"
            assert int(rejected.headers["retry-after"]) >= 1
            for _ in range(4):
                server.loop.call_soon_threadsafe(engine.tick)
                next(lines)
            assert list(lines)[-1] == "data: [DONE]"
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_stream_that_outlasts_the_drain_ends_with_an_error() -> None:
    engine = ScriptedEngine(Reply("never done", hang_at=1))
    with serve_scripted(engine, drain=0.1) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as response:
            lines = (line for line in response.iter_lines() if line.startswith("data: "))
            next(lines)
            next(lines)
            server._server.handle_exit(15, None)
            rest = list(lines)
        assert json.loads(rest[0][6:])["error"]["code"] == "draining"
        assert rest[-1] == "data: [DONE]"
        assert engine.cancelled == 1


def test_two_thousand_streams_are_held_with_bounded_memory() -> None:
    engine = ScriptedEngine(Reply("a b c"), pace=None)
    with serve_scripted(engine, queue=4000) as server:

        async def hold() -> str:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(make_request(stream=True))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            response = await reader.readuntil(b"data: [DONE]\n\n")
            writer.close()
            return join_content(b"".join(decode_chunks(response)).decode())

        async def run_all() -> list[str]:
            tasks = [asyncio.create_task(hold()) for _ in range(2000)]
            await asyncio.to_thread(
                wait_for_engine, server, engine, lambda engine: engine.active == 2000
            )
            growth = read_resident_bytes() - before
            for _ in range(4):
                server.loop.call_soon_threadsafe(engine.tick)
            assert growth < 2000 * 64 * 1024
            return await asyncio.gather(*tasks)

        before = read_resident_bytes()  # of client and server together
        assert set(asyncio.run(run_all())) == {"a b c"}


def join_content(text: str) -> str:
    frames = [json.loads(frame[6:]) for frame in text.split("\n\n") if frame.startswith("data: {")]
    return "".join(frame["choices"][0]["delta"].get("content", "") for frame in frames)
