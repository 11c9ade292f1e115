"""Runs a real server on a real port for a test."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvloop

from dragoman.http import server
from dragoman.http.app import App
from dragoman.http.server import make_app
from dragoman.pipeline.admission import Gate
from dragoman.runtime import build_engine_runtime
from dragoman.testing import ScriptedEngine

QUIET = {"log_level": "warning"}


class RunningServer:
    """A server that runs in a thread."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.url = ""
        self._listening = threading.Event()
        self._server = server.make_server(app, app.settings, self._ready)
        self._thread = threading.Thread(target=self._run, name="server")
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()

    def _ready(self, url: str) -> None:
        self.url = url
        self._listening.set()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            try:
                runner.run(self._server.serve())
            finally:
                self._listening.set()

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(60)
        assert self.url, "the server did not start"

    def stop(self) -> None:
        self._server.handle_exit(15, None)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def run_coroutine(self, work: Any, timeout: float = 160) -> Any:
        """Run a coroutine on the server's event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def get_gate(self) -> Gate:
        """Return the admission gate of the one loaded model."""
        [model] = self.app.runtime.services.models.list_loaded()
        return self.app.runtime.services.admission.get_gate(model)

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@contextmanager
def run_app(app: App) -> Iterator[RunningServer]:
    server = RunningServer(app)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def make_scripted_app(engine: Any = "Hello there!", **options: Any) -> App:
    """Make an app for a scripted engine on a free port."""
    if isinstance(engine, str):
        engine = ScriptedEngine(engine)
    options = {"name": "scripted", "port": 0} | options
    return make_app(build_engine_runtime(engine, options), local=True)


@contextmanager
def serve_scripted(engine: Any = "Hello there!", **options: Any) -> Iterator[RunningServer]:
    with run_app(make_scripted_app(engine, **options)) as server:
        yield server


def parse_events(response: httpx.Response) -> list[Any]:
    """Parse the events of a stream; the last one must be [DONE]."""
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    data = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in data)
    assert data[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in data[:-1]]


def make_chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}


def poll_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition on the server's internal state holds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
