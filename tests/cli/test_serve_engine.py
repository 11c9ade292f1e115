"""`dragoman.serve` in a program of its own: what it prints, how it stops, and its logging."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import httpx
import pytest

import dragoman
from dragoman.testing import ScriptedEngine
from dragoman.types import Job, Step
from tests.support.serving import make_chat

PROGRAM = """
import logging
import dragoman
from dragoman.testing import ScriptedEngine
{setup}
dragoman.serve(ScriptedEngine("Served."), port=0, {options})
print("after", logging.getLogger().handlers, logging.getLogger("dragoman").handlers)
"""


class Program:
    """A running program that serves an engine."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.lines = [process.stdout.readline().strip() for _ in range(2)]
        self.url = self.lines[0].removeprefix("Listening on ")

    def stop(self, kind: signal.Signals) -> tuple[int, str, str]:
        """Send a signal; return the exit code, and the rest of both outputs."""
        self._process.send_signal(kind)
        output, errors = self._process.communicate(timeout=30)
        return self._process.returncode, output, errors


@contextmanager
def start_program(setup: str = "", options: str = "") -> Iterator[Program]:
    source = PROGRAM.format(setup=setup, options=options)
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_address_model_and_requests_and_stops_cleanly(kind: signal.Signals) -> None:
    with start_program(options="name='mine'") as program:
        assert program.url.startswith("http://127.0.0.1:")
        assert program.lines[1] == "Serving mine. Press Ctrl-C to stop."
        body = make_chat(model="mine")
        answer = httpx.post(f"{program.url}/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "Served."
        assert httpx.get(f"{program.url}/nothing").status_code == 404
        code, output, errors = program.stop(kind)
    assert (code, output) == (0, "after [] []\n")  # it returns, and leaves no handler behind
    lines = errors.splitlines()
    assert "POST /v1/chat/completions 200" in lines[0]
    assert "model=mine" in lines[0]
    assert "GET /nothing 404" in lines[1]
    assert len(lines) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setup", "options", "shown"),
    [
        ("logging.basicConfig(level='INFO', format='OWN %(message)s')", "", ["OWN "]),
        ("logging.basicConfig(format='OWN %(message)s')", "", []),
        ("logging.basicConfig(format='OWN %(message)s')", "log_level='info'", ["OWN "]),
        ("logging.getLogger('dragoman').addHandler(logging.NullHandler())", "", []),
        ("", "log_format='json'", ['{"time"']),
    ],
    ids=["own", "own, warnings", "level", "silent", "json"],
)
def test_the_logging_of_the_program_is_respected(
    setup: str, options: str, shown: list[str]
) -> None:
    with start_program(setup, options) as program:
        assert httpx.get(f"{program.url}/v1/models").status_code == 200
        code, output, errors = program.stop(signal.SIGINT)
    assert code == 0
    assert output.startswith("after ")
    lines = [line for line in errors.splitlines() if "GET /v1/models 200" in line]
    assert len(lines) == len(shown)
    assert all(line.startswith(start) for line, start in zip(lines, shown, strict=True))


def test_an_app_configures_no_logging() -> None:
    before = [*logging.getLogger().handlers], [*logging.getLogger("dragoman").handlers]
    dragoman.app(ScriptedEngine("x"), log_level="debug")
    assert before == (logging.getLogger().handlers, logging.getLogger("dragoman").handlers)


def test_serve_blocks_and_serve_async_is_awaited() -> None:
    assert inspect.iscoroutinefunction(dragoman.serve_async)
    assert not inspect.iscoroutinefunction(dragoman.serve)


def test_serve_async_ends_when_its_task_is_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        serving = asyncio.create_task(dragoman.serve_async(ScriptedEngine("x"), port=0))
        await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(main())


class EndlessEngine:
    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        try:
            while True:
                yield Step(text="x", tokens=1)
                await asyncio.sleep(0)
        finally:
            self.closed.set()


def test_a_cancelled_server_frees_its_port_and_ends_its_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Servers one after the other in one event loop, each cancelled in the middle of a stream."""

    async def main() -> None:
        port = 0
        for _ in range(3):
            engine = EndlessEngine()
            serving = asyncio.create_task(dragoman.serve_async(engine, port=port))
            while "Serving" not in (output := capsys.readouterr().out):
                assert not serving.done(), serving.exception()
                await asyncio.sleep(0)
            url = output.split()[2]
            port = int(url.rpartition(":")[2])
            async with httpx.AsyncClient(base_url=url) as client:
                body = {"model": "default", "prompt": "x", "stream": True, "max_tokens": 10**6}
                async with client.stream("POST", "/v1/completions", json=body) as response:
                    lines = response.aiter_lines()
                    assert "text_completion" in await anext(lines)
                    serving.cancel()
                    assert "The server stopped" in "".join([line async for line in lines])
            with pytest.raises(asyncio.CancelledError):
                await serving
            await engine.closed.wait()

    asyncio.run(main())
