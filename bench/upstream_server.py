"""Dragoman in front of an upstream server, or of the same script in a child process.

Run as `python -m bench.upstream_server PORT PACE [URL]`; without an address the script runs in a
child process, as the default engine does.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator

import dragoman
from bench.upstream_worker import SCRIPT, SETTINGS
from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.engines.remote.settings import RemoteSettings, Upstream
from dragoman.engines.step_queue import StepConsumer
from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.testing.scripted import create
from dragoman.types import Job, Step


class LateEngine:
    """An engine that is started with its first job, inside the server's event loop."""

    def __init__(self, pace: float, url: str | None) -> None:
        scripted = create([SCRIPT], **SETTINGS)
        self.capabilities, self.tokenizer = scripted.capabilities, scripted.tokenizer
        self._pace, self._url = pace, url
        self._engine: RemoteEngine | SubprocessEngine | None = None

    async def _start(self) -> RemoteEngine | SubprocessEngine:
        if self._url is None:
            settings = SETTINGS | {"script": [SCRIPT], "pace": self._pace}
            engine = SubprocessEngine("dragoman.testing.scripted:create", settings, name="bench")
            await engine.start()
            return engine
        assert self.tokenizer is not None
        upstream = Upstream(protocol="llama-server", model="scripted", context=100_000)
        return await connect(RemoteSettings(url=self._url), upstream, self.tokenizer.vocabulary)

    async def admit(self, job: Job) -> None:
        if self._engine is None:
            self._engine = await self._start()
        await self._engine.admit(job)

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        assert self._engine is not None
        async for step in self._engine.generate(job):
            yield step

    async def deliver_steps(self, job: Job, consumer: StepConsumer) -> None:
        assert self._engine is not None
        await self._engine.deliver_steps(job, consumer)

    async def tokenize(self, text: str, special: bool) -> list[int]:
        assert self._engine is not None
        return await self._engine.tokenize(text, special)

    async def aclose(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()


if __name__ == "__main__":
    address = sys.argv[3] if len(sys.argv) > 3 else None
    late = LateEngine(float(sys.argv[2]), address)
    dragoman.serve(late, port=int(sys.argv[1]), name="bench", queue=10_000, log_level="warning")
