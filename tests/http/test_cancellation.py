"""Leaving, waiting, reading slowly, stopping: nobody is stalled and nothing goes on for nobody."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.http.cancellation import RunRegistry
from dragoman.http.closing import StallTimer
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Job, Step
from tests.support.serving import (
    RunningServer,
    make_chat,
    make_scripted_app,
    parse_events,
    poll_until,
    serve_scripted,
)

LONG = " ".join(f"word{i}" for i in range(2000))


def until(
    server: RunningServer, engine: ScriptedEngine, fact: Callable[[ScriptedEngine], bool]
) -> None:
    server.run_coroutine(asyncio.wait_for(engine.wait_until(fact), 50))


def request(path: str = "/v1/chat/completions", **fields: Any) -> bytes:
    body = json.dumps(make_chat(**fields)).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def connection(server: RunningServer, sent: bytes) -> Any:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as made:
        made.sendall(sent)
        yield made


@pytest.mark.parametrize("streamed", [True, False])
def test_d1_leaving_stops_the_engine(streamed: bool) -> None:
    engine = ScriptedEngine(Reply(LONG), pace=0.005)
    with serve_scripted(engine) as server:
        with connection(server, request(stream=streamed)) as made:
            until(server, engine, lambda e: e.steps > 3)
            made.close()
        left = time.monotonic()
        until(server, engine, lambda e: e.active == 0)
        assert time.monotonic() - left < 1
        assert engine.cancelled == 1
        steps = engine.steps
        server.run_coroutine(asyncio.sleep(0.05))
        assert engine.steps == steps
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        assert server.app.metrics.errors["client_disconnected"] == 1


@pytest.mark.parametrize("streamed", [True, False])
def test_d1_a_request_sent_ahead_does_not_hide_the_leaving(streamed: bool) -> None:
    engine = ScriptedEngine(Reply("one two", hang_at=1))
    ahead = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with serve_scripted(engine) as server:
        for extra in ([ahead], [ahead[:20], ahead[20:]], [b"garbage\r\n\r\n"]):
            with connection(server, request(stream=streamed) + extra[0]) as made:
                until(server, engine, lambda e: e.active == 1)
                for more in extra[1:]:
                    made.sendall(more)
                made.close()
            until(server, engine, lambda e: e.active == 0)
        poll_until(lambda: len(server.app.responder.runs) == 0)


def test_what_is_sent_ahead_does_not_reach_into_the_answer() -> None:
    engine = ScriptedEngine(Reply("one two three"), pace=None)
    with serve_scripted(engine, receive_timeout=0.2) as server:
        with connection(server, request(stream=True) + b"GET / HT") as made:
            until(server, engine, lambda e: e.active == 1)
            for _ in range(5):
                server.loop.call_soon_threadsafe(engine.tick)
            received = b""
            while data := made.recv(65536):  # and the connection is closed after the answer
                received += data
        assert received.count(b"HTTP/1.1") == 1
        assert events_of(b"".join(unchunk(received.split(b"\r\n\r\n", 1)[1])).decode()) == (
            "one two three"
        )


def test_an_engine_that_cancels_itself_is_an_error_like_any_other() -> None:
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


def test_many_prompts_with_many_choices_do_not_freeze_the_server() -> None:
    with serve_scripted(ScriptedEngine("x")) as server:
        body = {"model": "scripted", "prompt": ["hi"] * 16, "n": 128, "max_tokens": 1}
        began = time.monotonic()
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        assert len(answer["choices"]) == 2048
        assert time.monotonic() - began < 20


def test_usage_does_not_depend_on_how_fast_a_client_reads() -> None:
    script = Reply("word " * 3000 + "STOP " + "more " * 3000, chunks=5)
    said = {"stop": "STOP", "stream": True, "stream_options": {"include_usage": True}}
    with serve_scripted(ScriptedEngine(script)) as server:
        body = json.dumps({"model": "scripted", "prompt": ["a", "b"], "max_tokens": 9999, **said})
        quick = httpx.post(f"{server.url}/v1/completions", content=body, timeout=60)
        usage = parse_events(quick)[-1]["usage"]
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", server.port))
            made.sendall(f"{head}\r\n\r\n{body}".encode())
            received = b""
            made.settimeout(20)
            while b"data: [DONE]" not in received:
                received += made.recv(2048)
        text = b"".join(unchunk(received.split(b"\r\n\r\n", 1)[1])).decode()
        last = next(frame for frame in text.split("\n\n") if '"choices":[]' in frame)
        assert json.loads(last[6:])["usage"] == usage
        assert usage["completion_tokens"] == 2 * 3001


def test_d1_leaving_stops_every_choice_and_every_prompt() -> None:
    engine = ScriptedEngine(Reply(LONG), pace=0.005)
    with serve_scripted(engine) as server:
        body = json.dumps({"model": "scripted", "prompt": ["a", "b"], "n": 3, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        sent = head.replace("host: x", "host: localhost").encode() + body.encode()
        with connection(server, sent) as made:
            until(server, engine, lambda e: e.active == 2 and e.steps > 5)
            made.close()
        until(server, engine, lambda e: e.active == 0)


def test_d21_leaving_before_the_first_token_is_no_error() -> None:
    engine = ScriptedEngine(Reply("never said", hang_at=0))
    with serve_scripted(engine) as server:
        with connection(server, request(stream=True)) as made:
            until(server, engine, lambda e: e.active == 1)
            made.close()
        until(server, engine, lambda e: e.active == 0)
        assert httpx.get(f"{server.url}/health/ready").status_code == 200


def test_leaving_the_queue_touches_nobody_else() -> None:
    engine = ScriptedEngine([Reply("first " * 20, when="one"), Reply("other")], pace=None, slots=1)
    with serve_scripted(engine) as server:
        gate = server.get_gate()
        with connection(server, request(text="one", stream=True)):
            until(server, engine, lambda e: e.active == 1)
            with connection(server, request(text="two", stream=True)) as waiting:
                poll_until(lambda: gate.waiting == 1)
                waiting.close()
                poll_until(lambda: gate.waiting == 0)
            assert engine.started == 1
            assert engine.active == 1


def test_d14_d85_a_full_queue_is_a_429_with_a_time() -> None:
    engine = ScriptedEngine(Reply("x", hang_at=0), slots=1)
    with serve_scripted(engine, queue=1) as server:
        gate = server.get_gate()
        with connection(server, request(stream=True)), connection(server, request(stream=True)):
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


def test_d22_fact14_a_silent_stream_is_kept_alive() -> None:
    engine = ScriptedEngine(Reply("done"), pace=None)
    with (
        serve_scripted(engine, patience=0.02, ping=0.05) as server,
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.iter_lines()
        seen = [next(lines) for _ in range(8)]
        assert seen.count(": keep-alive") >= 2
        assert not any(line.startswith(": ping") for line in seen)


def test_d18_chunks_are_sent_as_they_are_made() -> None:
    engine = ScriptedEngine(Reply("a b c"), pace=None)
    with (
        serve_scripted(engine) as server,
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as answer,
    ):
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        assert '"role"' in next(lines)
        for word in ("a", " b", " c"):
            server.loop.call_soon_threadsafe(engine.tick)
            assert json.loads(next(lines)[6:])["choices"][0]["delta"] == {"content": word}


def test_d2_a_slow_reader_stalls_nobody_and_gets_everything() -> None:
    text = "x" * 200
    engine = ScriptedEngine([Reply(LONG * 20, when="slow", chunks=64), Reply(text)])
    with serve_scripted(engine) as server:
        with socket.socket() as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", server.port))
            made.sendall(request(text="slow", stream=True))
            until(server, engine, lambda e: e.steps > 50)
            for _ in range(20):
                other = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat("quick"))
                assert other.json()["choices"][0]["message"]["content"] == text
            received = b""
            made.settimeout(20)
            while b"data: [DONE]" not in received:
                received += made.recv(65536)
        raw = b"".join(unchunk(received.split(b"\r\n\r\n", 1)[1]))
        frames = [frame for frame in raw.decode().split("\n\n") if frame.startswith("data: {")]
        deltas = [json.loads(frame[6:])["choices"][0]["delta"] for frame in frames]
        assert "".join(delta.get("content", "") for delta in deltas) == LONG * 20


def unchunk(data: bytes) -> list[bytes]:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16) if size else 0
        if not length:
            break
        parts.append(rest[:length])
        data = rest[length + 2 :]
    return parts


def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    engine = ScriptedEngine(Reply(LONG * 400, chunks=512))
    with serve_scripted(engine, stall=0.2) as server, socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", server.port))
        made.sendall(request(stream=True))
        until(server, engine, lambda e: e.started == 1)
        until(server, engine, lambda e: e.active == 0)
        assert engine.cancelled == 1
        poll_until(lambda: not server._server.server_state.connections)


class Buffer:
    """A transport of which only the size of its buffer is known, and a clock that is set."""

    def __init__(self) -> None:
        self.size = 0
        self.aborted = False
        self.now = 0.0
        self._timers: list[asyncio.TimerHandle] = []

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        loop: Any = self
        self._timers.append(asyncio.TimerHandle(self.now + seconds, call, (), loop))
        return self._timers[-1]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers.remove(handle)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self._timers if timer.when() <= self.now]
        for timer in due:
            self._timers.remove(timer)
            timer._run()


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> Buffer:
    made = Buffer()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


def test_a_reader_that_takes_all_and_is_given_more_stays(buffer: Buffer) -> None:
    stall = StallTimer(buffer, 1.0)  # type: ignore[arg-type]
    for _ in range(20):
        buffer.size = 65_000
        stall.restart()
        buffer.wait(0.3)
        buffer.size = 0
    assert not buffer.aborted


def test_a_reader_that_takes_some_of_it_stays(buffer: Buffer) -> None:
    stall = StallTimer(buffer, 1.0)  # type: ignore[arg-type]
    buffer.size = 65_000
    stall.restart()
    for buffer.size in (30_000, 20_000):
        buffer.wait(1.0)
    buffer.size = 10_000  # little enough for more to be written, which is no pause yet
    stall.on_buffer_drained(more_follows=True)
    buffer.size = 60_000
    buffer.wait(1.0)
    assert not buffer.aborted
    stall.restart()
    buffer.wait(0.9)
    assert not buffer.aborted
    buffer.wait(0.1)
    assert buffer.aborted


def test_the_end_of_an_answer_is_to_be_taken_too(buffer: Buffer) -> None:
    stall = StallTimer(buffer, 1.0)  # type: ignore[arg-type]
    buffer.size = 10_000
    stall.on_buffer_drained(more_follows=False)
    buffer.wait(1.0)
    assert buffer.aborted


def test_who_leaves_as_the_work_ends_interrupts_nothing_else() -> None:
    async def scenario() -> None:
        gone = asyncio.get_running_loop().create_future()
        async with RunRegistry().track(gone):
            gone.set_result(None)  # heard of in the next round of the loop
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "heard"),
    [
        *((make_chat(stream=True), heard) for heard in (0, 1, 3)),
        *((make_chat(), heard) for heard in (0, 1)),
        *(({}, heard) for heard in (0, 1)),  # which is refused
    ],
)
def test_a_send_that_fails_is_a_client_that_left(
    body: Any, heard: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_scripted_app(ScriptedEngine("one two three four"))
    came = [{"type": "http.request", "body": json.dumps(body).encode()}]
    sent: list[Any] = []

    async def receive() -> Any:
        return came.pop() if came else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if len(sent) >= heard:
            raise BrokenPipeError
        sent.append(message)

    async def scenario() -> None:
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        await app(scope, receive, send)
        await app.aclose()

    asyncio.run(scenario())
    assert app.metrics.errors == {"client_disconnected": 1}
    assert "broke" not in caplog.text


def test_a_whole_answer_that_nobody_takes_is_dropped() -> None:
    engine = ScriptedEngine(Reply(LONG * 400, chunks=100_000))
    with serve_scripted(engine, stall=0.2) as server, socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.connect(("127.0.0.1", server.port))
        made.sendall(request())
        until(server, engine, lambda e: e.started == 1 and e.active == 0)
        poll_until(lambda: not server._server.server_state.connections)


def test_draining_lets_streams_finish_and_takes_no_new_work() -> None:
    engine = ScriptedEngine(Reply("a b c"), pace=None)
    with serve_scripted(engine) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            next(lines)
            server._server.handle_exit(15, None)
            poll_until(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            refused = httpx.post(f"{server.url}/v1/chat/completions", json=make_chat())
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert int(refused.headers["retry-after"]) >= 1
            for _ in range(4):
                server.loop.call_soon_threadsafe(engine.tick)
                next(lines)
            assert list(lines)[-1] == "data: [DONE]"
        server._thread.join(20)
        assert not server._thread.is_alive()


def test_a_stream_that_outlasts_the_drain_ends_with_an_error() -> None:
    engine = ScriptedEngine(Reply("never done", hang_at=1))
    with serve_scripted(engine, drain=0.1) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=make_chat(stream=True)
        ) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
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
            writer.write(request(stream=True))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            answer = await reader.readuntil(b"data: [DONE]\n\n")
            writer.close()
            return events_of(b"".join(unchunk(answer)).decode())

        async def everyone() -> list[str]:
            tasks = [asyncio.create_task(hold()) for _ in range(2000)]
            await asyncio.to_thread(until, server, engine, lambda e: e.active == 2000)
            grown = resident() - before
            for _ in range(4):
                server.loop.call_soon_threadsafe(engine.tick)
            assert grown < 2000 * 64 * 1024
            return await asyncio.gather(*tasks)

        before = resident()
        assert set(asyncio.run(everyone())) == {"a b c"}


def resident() -> int:
    """Bytes of memory this process holds, client and server together."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def events_of(text: str) -> str:
    frames = [json.loads(f[6:]) for f in text.split("\n\n") if f.startswith("data: {")]
    return "".join(frame["choices"][0]["delta"].get("content", "") for frame in frames)


def test_d81_d88_every_request_is_counted_once() -> None:
    engine = ScriptedEngine([Reply("breaks", when="bad", raise_at=1), Reply("Hello there!")])
    with serve_scripted(engine) as server:
        url = f"{server.url}/v1/chat/completions"
        httpx.post(url, json=make_chat())
        parse_events(httpx.post(url, json=make_chat(stream=True)))
        httpx.post(url, json=make_chat("bad"))
        httpx.post(url, json=make_chat("bad", stream=True))
        httpx.post(url, json=make_chat(n=0))
        httpx.get(f"{server.url}/nowhere")
        page = httpx.get(f"{server.url}/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert lines['dragoman_requests_total{route="/v1/chat/completions",status="200"}'] == "3.0"
    assert lines['dragoman_requests_total{route="/v1/chat/completions",status="500"}'] == "1.0"
    assert lines['dragoman_requests_total{route="/v1/chat/completions",status="400"}'] == "1.0"
    assert lines['dragoman_requests_total{route="none",status="404"}'] == "1.0"
    assert lines["dragoman_succeeded_total"] == "2.0"
    assert lines['dragoman_errors_total{code="engine_error"}'] == "2.0"
    assert lines['dragoman_errors_total{code="not_found"}'] == "1.0"
    assert float(lines["dragoman_time_to_first_token_seconds_count"]) == 4
    assert float(lines["dragoman_inter_token_seconds_count"]) > 2
    assert float(lines['dragoman_tokens_total{kind="completion"}']) > 4
    assert lines["dragoman_streams_open"] == "0.0"
    assert lines['dragoman_requests_running{model="scripted"}'] == "0.0"


def test_labels_are_bounded_whatever_clients_send() -> None:
    with serve_scripted("x") as server:
        for i in range(50):
            httpx.get(f"{server.url}/made/up/{i}")
            httpx.post(f"{server.url}/v1/chat/completions", json=make_chat(model=f"model-{i}"))
        page = httpx.get(f"{server.url}/metrics").text
    assert "made" not in page
    assert "model-4" not in page
