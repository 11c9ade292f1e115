"""A server around an engine in a child process, for tests of crashes and hangs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

from dragoman.engines.subprocess.engine import SubprocessEngine
from dragoman.engines.subprocess.restart_schedule import Timing
from tests.support.faulty_engines import PromptedEngine
from tests.support.serving import RunningServer, serve_scripted

FAULTY = "tests.support.faulty_engines"
HANG_TIMEOUT = 0.6
# restarts without delay, as often as a test likes
FAST = Timing(
    hang_timeout=HANG_TIMEOUT,
    first_restart_delay=0.01,
    max_restart_delay=0.01,
    max_restarts=1000,
)
# a busy machine is no hang here
PATIENT = msgspec.structs.replace(FAST, hang_timeout=20.0)


class SupervisedServer:
    """A server whose engine does what prompts say; see `PromptedEngine`."""

    def __init__(
        self, server: RunningServer, engine: SubprocessEngine, client: httpx.Client
    ) -> None:
        self.server = server
        self.engine = engine
        self.client = client

    def complete(self, prompt: str, **fields: Any) -> httpx.Response:
        body = {"model": "scripted", "prompt": prompt, "max_tokens": 1000, **fields}
        return self.client.post("/v1/completions", json=body)

    def embed(self, *inputs: str) -> httpx.Response:
        return self.client.post("/v1/embeddings", json={"model": "scripted", "input": inputs})

    def count_restarts(self) -> dict[str, int]:
        """Return the restarts by reason, as `/metrics` reports them."""
        pattern = r'^dragoman_engine_restarts_total\{model="scripted",reason="(\w+)"\} (\d+)'
        found = re.findall(pattern, self.client.get("/metrics").text, re.MULTILINE)
        return {reason: int(count) for reason, count in found if int(count)}


@contextmanager
def serve_supervised(
    factory: str = "create_prompted",
    settings: Mapping[str, object] | None = None,
    *,
    timing: Timing = FAST,
    **options: Any,
) -> Iterator[SupervisedServer]:
    """Serve an engine of `faulty_engines`."""
    engine = SubprocessEngine(f"{FAULTY}:{factory}", settings or {}, name="faulty", timing=timing)
    engine.capabilities = PromptedEngine.capabilities
    with (
        serve_scripted(engine, **options) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        server.run_coroutine(engine.start())
        try:
            yield SupervisedServer(server, engine, client)
        finally:
            server.run_coroutine(engine.aclose())
