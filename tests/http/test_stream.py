"""A stream has one end, wherever its deadline interrupts it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import nullcontext
from typing import Any

import pytest

from dragoman.http.app import App
from dragoman.http.asgi import DIRECT_WRITER, RequestContext
from dragoman.http.stream import Stream
from dragoman.testing import Reply, ScriptedEngine
from tests.support.serving import make_chat, make_scripted_app

LATE = b"The request was not finished within"
DEADLINE, READS_AGAIN = 0.05, 0.5  # seconds
# by path: the fields of a request for a stream, and what only the last frame of each contains
STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (make_chat(stream=True), r"data: \[DONE\]"),
    "/v1/completions": ({"model": "scripted", "prompt": "a", "stream": True}, r"data: \[DONE\]"),
    "/v1/responses": (
        {"model": "scripted", "input": "a", "stream": True},
        r"event: response\.(completed|failed)",
    ),
    "/v1/messages": (make_chat(stream=True, max_tokens=9), r"event: (message_stop|error)"),
    "/api/chat": (make_chat(), r'.*"done":true|{"error"'),
}


async def stream(
    app: App, path: str, blocked: int | None = None, in_time: set[int] | None = None
) -> list[Any]:
    """Return the messages of a stream to a client that reads again after its deadline.

    `blocked` is the message that is not sent before that; it is never an error status. On a busy
    machine the deadline may pass before this message is reached; it is `in_time` otherwise.
    """
    incoming = [{"type": "http.request", "body": json.dumps(STREAMS[path][0]).encode()}]
    sent: list[Any] = []
    never, calls = asyncio.Event(), 0
    started = time.monotonic()

    async def receive() -> Any:
        return incoming.pop() if incoming else await never.wait()

    async def send(message: Any) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == blocked and message.get("status", 200) == 200:
            waited = time.monotonic() - started
            if in_time is not None and waited < DEADLINE:
                in_time.add(blocked)
            await asyncio.sleep(READS_AGAIN - waited)
        sent.append(message)

    headers = [] if blocked is None else [(b"x-request-timeout", b"%g" % DEADLINE)]
    await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)
    return sent


@pytest.mark.parametrize("path", STREAMS)
def test_stream_that_is_interrupted_has_one_end(path: str) -> None:
    async def scenario() -> None:
        app = make_scripted_app(ScriptedEngine("one two"), store="sqlite://")
        whole = await stream(app, path)
        in_time: set[int] = set()
        for blocked in range(len(whole)):
            start, *frames, end = await stream(app, path, blocked, in_time)
            assert (start["type"], end.get("more_body", False)) == ("http.response.start", False)
            if blocked == 0 or (blocked not in in_time and start["status"] == 504):
                assert start["status"] == 504  # nothing was sent: the error has its own status
                assert LATE in end["body"]
                continue
            bodies = [frame["body"] for frame in frames]
            ends = [re.match(STREAMS[path][1], body.decode()) is not None for body in bodies]
            assert ends == [False] * (len(ends) - 1) + [True], bodies
            if blocked >= len(whole) - 2 and blocked in in_time:  # the answer was complete
                assert len(frames) == len(whole) - 2
                assert LATE not in b"".join(bodies)
        await app.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", STREAMS)
def test_deadline_has_its_status_while_the_first_headers_wait_for_the_client(path: str) -> None:
    async def scenario() -> None:
        engine = ScriptedEngine(Reply("one", hang_at=0))  # so the clock sends the headers
        app = make_scripted_app(engine, store="sqlite://", patience=0.01)
        start, end = await stream(app, path, blocked=0)
        assert start["status"] == 504
        assert LATE in end["body"]
        await app.aclose()

    asyncio.run(scenario())


class RecordingWriter(nullcontext[None]):
    """Records what is written past `send`, as our own server's connections allow it."""

    def __init__(self, sent: list[Any]) -> None:
        super().__init__()
        self._sent = sent

    def write(self, frames: list[bytes]) -> bool:
        self._sent.extend(frames)
        return True

    def hold_collected(self) -> None: ...

    def start(self, status: int, headers: Any) -> bool:
        return False

    def end(self, frames: list[bytes]) -> bool:
        return False


def test_nothing_is_sent_after_the_end() -> None:
    """The clock finds the stream silent in the same turn of the event loop in which it ends."""

    async def scenario() -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": []}
        scope[DIRECT_WRITER] = RecordingWriter(sent)
        stream = Stream(RequestContext(scope, receive_nothing, send, "req_1"), [])
        await stream.start()
        stream.push_end([b"data: [DONE]\n\n"])
        stream.on_tick(time.perf_counter() + 60, 1, 1)
        await stream.finish()
        end = len(sent)
        await asyncio.sleep(0)
        assert sent[end - 1]["more_body"] is False
        assert sent[end:] == []

    asyncio.run(scenario())


async def receive_nothing() -> Any:
    return await asyncio.Event().wait()
