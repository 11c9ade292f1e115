"""Remote engines over scripted workers, for each protocol that carries token ids."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import NamedTuple, ParamSpec, TypeVar

from dragoman.engines.remote.engine import RemoteEngine, connect
from dragoman.engines.remote.settings import RemoteSettings, TokenProtocol, Upstream
from dragoman.testing.replies import Script
from dragoman.testing.upstream.apis import WorkerKind
from dragoman.testing.upstream.worker import ScriptedWorker
from dragoman.types import DEFAULT_SAMPLING, Job, Json, Sampling

P = ParamSpec("P")
T = TypeVar("T")
TEST_SECONDS = 60.0  # after which a test that waits for an event fails


def in_event_loop(test: Callable[P, Coroutine[None, None, T]]) -> Callable[P, T]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        async def limit() -> T:
            async with asyncio.timeout(TEST_SECONDS):
                return await test(*args, **kwargs)

        return asyncio.run(limit())

    return run


class Variant(NamedTuple):
    """A protocol, and the worker that speaks it."""

    protocol: TokenProtocol
    kind: WorkerKind
    path: str
    is_cumulative: bool = True


VARIANTS = {
    "llama-server": Variant("llama-server", "llama-server", "/completion"),
    "vllm-generate": Variant("vllm-generate", "vllm", "/inference/v1/generate"),
    "vllm-completions": Variant("vllm-completions", "vllm", "/v1/completions"),
    "sglang-cumulative": Variant("sglang", "sglang", "/generate"),
    "sglang-incremental": Variant("sglang", "sglang", "/generate", is_cumulative=False),
}
CONTEXT = 4096


def make_worker(variant: Variant, script: Script = "Hello.", **options: Json) -> ScriptedWorker:
    options.setdefault("context", CONTEXT)
    return ScriptedWorker(variant.kind, script, is_cumulative=variant.is_cumulative, **options)


def make_settings(worker: ScriptedWorker, **changes: Json) -> RemoteSettings:
    """Return settings with short delays; those of the deadlines are long unless given."""
    fields: dict[str, Json] = {
        "url": worker.url,
        "first_retry_delay": 0.01,
        "max_retry_delay": 0.05,
        "identity_interval": 0.0,
    }
    return RemoteSettings(**fields | changes)


def make_upstream(variant: Variant, worker: ScriptedWorker, **changes: Json) -> Upstream:
    fields: dict[str, Json] = {
        "protocol": variant.protocol,
        "model": worker.model,
        "context": worker.engine.settings.context,
    }
    return Upstream(**fields | changes)


def get_vocabulary(worker: ScriptedWorker) -> Json:
    tokenizer = worker.engine.tokenizer
    assert tokenizer is not None
    return tokenizer.vocabulary


@asynccontextmanager
async def open_remote(
    variant: Variant, worker: ScriptedWorker, **settings: Json
) -> AsyncIterator[RemoteEngine]:
    """Connect to a worker that runs; the worker forgets the requests of that."""
    engine = await connect(
        make_settings(worker, **settings), make_upstream(variant, worker), get_vocabulary(worker)
    )
    worker.requests.clear()
    try:
        yield engine
    finally:
        await engine.aclose()


def make_job(text: str = "Say it", **changes: Json) -> Job:
    """Make a greedy job of the bytes of a text; `changes` are fields of sampling and job."""
    fields = {"temperature": 0.0} | {
        name: changes.pop(name) for name in tuple(changes) if name in Sampling.__struct_fields__
    }
    sampling = Sampling(**fields).with_defaults(DEFAULT_SAMPLING)
    return Job(id="job", prompt=list(text.encode()), sampling=sampling, **changes)


async def collect_ids(engine: RemoteEngine, job: Job) -> list[int]:
    """Run a job, and return the tokens of its first choice."""
    await engine.admit(job)
    return [token async for step in engine.generate(job) if step.choice == 0 for token in step.ids]


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that nothing announces."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
