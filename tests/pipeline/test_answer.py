"""Engines that call the readers of their steps: the same answers as from engines that yield."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import httpx
import pytest

from dragoman.engines.step_queue import StepConsumer, StepQueue
from dragoman.testing import Reply, ScriptedEngine
from dragoman.testing.delivering_engine import DeliveringEngine
from dragoman.types import Job, Step
from tests.support.serving import RunningServer, make_chat, poll_until, serve_scripted

CHAT = "/v1/chat/completions"
TEXT = "The quick brown fox jumps over the lazy dog, and nobody minds."
LONG = " ".join(f"word{number}" for number in range(4000))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, make_chat()),
    "choices": (CHAT, make_chat(n=3)),
    "limit": (CHAT, make_chat(max_tokens=3)),
    "stop": (CHAT, make_chat(stop=["fox"])),
    "logprobs": (CHAT, make_chat(logprobs=True, top_logprobs=2)),
    "prompts": ("/v1/completions", {"model": "scripted", "prompt": ["a", "b"]}),
    "echo": ("/v1/completions", {"model": "scripted", "prompt": "a", "echo": True}),
    "responses": ("/v1/responses", {"model": "scripted", "input": "a"}),
    "messages": (
        "/v1/messages",
        {
            "model": "scripted",
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "a"}],
        },
    ),
}
VARYING = re.compile(
    r'"(id|item_id|created|created_at|completed_at|response_id|system_fingerprint)":\s*("[^"]*"|[\d.]+)'
)


def post(server: RunningServer, path: str, body: dict[str, Any]) -> str:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return VARYING.sub("", response.text)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_same(case: str, streamed: bool) -> None:
    path, body = CASES[case]
    answers = []
    for engine in (ScriptedEngine(TEXT), DeliveringEngine(TEXT)):
        with serve_scripted(engine) as server:
            answers.append(post(server, path, body | {"stream": streamed}))
    assert answers[0] == answers[1]


def send_chat(server: RunningServer, **fields: Any) -> socket.socket:
    body = json.dumps(make_chat(stream=True, **fields)).encode()
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.sendall(
        f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return client


def read_text(client: socket.socket) -> str:
    data = b""
    while received := client.recv(1 << 16):
        data += received
    chunks = re.findall(rb"data: (\{.*?\})\n\n", data.replace(b"\r\n", b""), re.DOTALL)
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.slow
def test_a_slow_client_gets_everything_and_slows_nobody_down() -> None:
    engine = DeliveringEngine(LONG)
    with serve_scripted(engine) as server, send_chat(server) as slow:
        with send_chat(server) as quick:
            assert read_text(quick) == LONG
        assert read_text(slow) == LONG
        poll_until(lambda: engine.finished == 2)


def test_a_disconnect_cancels_the_job() -> None:
    engine = DeliveringEngine(LONG, pace=0.001)
    with serve_scripted(engine) as server:
        with send_chat(server):
            server.run_coroutine(engine.wait_until(lambda engine: engine.steps > 5))
        server.run_coroutine(engine.wait_until(lambda engine: engine.cancelled == 1))
        poll_until(lambda: server.get_gate().running == 0)


class BrokenEngine(DeliveringEngine):
    """Delivers a step of a choice that nobody wants to one job, and good ones to others."""

    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        if "break" not in str(job.prompt):
            await super().deliver_steps(job, consumer)
            return
        queue = StepQueue()
        asyncio.get_running_loop().call_soon(queue.put, [Step(7, "x", tokens=1)])
        await queue.deliver(consumer)


def test_a_step_that_cannot_be_read_fails_its_own_request_only() -> None:
    with serve_scripted(BrokenEngine(Reply(TEXT), pace=0.001)) as server, send_chat(server) as good:
        broken = httpx.post(f"{server.url}{CHAT}", timeout=60, json=make_chat("break it"))
        assert broken.status_code == 500
        assert broken.json()["error"]["code"] == "engine_error"
        assert read_text(good) == TEXT


class SilentEngine(DeliveringEngine):
    """Delivers some steps and then hangs."""

    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        consumer.consume([Step(0, "Hello", tokens=1)])
        await asyncio.Event().wait()


def test_a_hang_is_noticed() -> None:
    with serve_scripted(SilentEngine(TEXT), hang_timeout=0.3) as server:
        response = httpx.post(f"{server.url}{CHAT}", timeout=60, json=make_chat())
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_down"
