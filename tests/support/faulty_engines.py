"""Engines with one peculiarity each, created in another process by the name of their function."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from dragoman.errors import BadRequest, ModelBroken
from dragoman.testing import Reply, ScriptedEngine
from dragoman.types import Capabilities, Job, Json, MediaItem, Step
from dragoman.types.cache_scope import get_cache_scope
from dragoman.types.media_ids import PromptCount

PRINTED_LINE = "printed to standard error"


class MinimalEngine:
    """Yields one word, and has none of the optional methods of an engine."""

    async def admit(self, job: Job) -> None:
        pass

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="word", tokens=1, finish="stop")


class CountingEngine(MinimalEngine):
    """Never ends a job; `tokenize` returns how many jobs are running."""

    def __init__(self) -> None:
        self.running = 0

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self.running += 1
        try:
            while True:
                yield Step(text="x", tokens=1)
                await asyncio.sleep(0.001)  # or its reader is late on a busy machine
        finally:
            self.running -= 1

    async def tokenize(self, text: str, special: bool) -> list[int]:
        return [self.running]


class ScopeReader(MinimalEngine):
    """Counts the letters of the cache scope that its methods are called in."""

    async def count_prompt(self, prompt: list[int], media: Sequence[MediaItem]) -> PromptCount:
        return PromptCount(len(get_cache_scope()))

    async def admit(self, job: Job) -> None:
        if get_cache_scope() != job.cache_scope:
            raise BadRequest("The scope is not that of the job.")

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text=get_cache_scope(), tokens=1, finish="stop")


class RaisingEngine(MinimalEngine):
    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        yield Step(text="wo", tokens=1)
        raise ZeroDivisionError("/a/secret/path")

    async def embed(self, inputs: Sequence[str]) -> list[list[float]]:
        return [[1.0] for _ in inputs]


class PrintingEngine(RaisingEngine):
    async def embed(self, inputs: Sequence[str]) -> list[list[float]]:
        sys.stderr.write(f"{PRINTED_LINE}\n")
        sys.stderr.flush()
        return [[1.0] for _ in inputs]


class UnclosableEngine(MinimalEngine):
    async def aclose(self) -> None:
        await asyncio.Event().wait()


def block_loop(seconds: float) -> None:
    """Block the event loop, as an engine does that computes in a coroutine."""
    time.sleep(seconds)


async def poll(condition: Callable[[], bool]) -> None:
    """Wait for what another process or another job does."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class PromptedEngine(MinimalEngine):
    """Does what the words of a prompt say, one after the other.

    `step` yields a step, `wait:S` waits S seconds as a native thread would, `hang` waits for ever,
    `block:S` blocks the event loop, `raise`, `memory`, `crash`, `kill`, `segfault` and `exit` fail.
    `lock` waits for the only slot of the engine, which the job then keeps. `until:PATH` waits for a
    file, and `beside:N` until N jobs run. Words that start with `admit-` are meant for `admit`.
    Other words do nothing.
    """

    capabilities = Capabilities(
        embeddings=1, tokenize=True, slots=8, sampling=frozenset({"max_tokens", "seed"})
    )

    def __init__(self) -> None:
        self._slot = asyncio.Lock()
        self._running = 0

    async def admit(self, job: Job) -> None:
        for word in str(job.prompt).split():
            if word.startswith("admit-"):
                await self._act(word.removeprefix("admit-"))

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        async with AsyncExitStack() as stack:
            self._running += 1
            stack.callback(self._count_end)
            for word in str(job.prompt).split():
                if word == "step":
                    yield Step(text="x", tokens=1)
                elif word == "lock":
                    await stack.enter_async_context(self._slot)
                else:
                    await self._act(word)
        yield Step(text=".", tokens=1, finish="stop")

    async def embed(self, inputs: Sequence[list[int] | str]) -> list[list[float]]:
        for text in inputs:
            await self._act(str(text))
        return [[1.0] for _ in inputs]

    async def tokenize(self, text: str, special: bool) -> list[int]:
        await self._act(text)
        return [1]

    def _count_end(self) -> None:
        self._running -= 1

    async def _act(self, word: str) -> None:
        action, _, value = word.partition(":")
        match action:
            case "wait":
                await asyncio.sleep(float(value))
            case "until":
                await poll(Path(value).exists)
            case "beside":
                await poll(lambda: self._running >= int(value))
            case "block":
                block_loop(float(value))
            case "hang":
                await asyncio.Event().wait()
            case "raise":
                raise ZeroDivisionError("/a/secret/path")
            case "memory":
                raise MemoryError
            case "crash":
                os.abort()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(7)


class ProbedPromptedEngine(PromptedEngine):
    """Answers probes unless a job hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False

    async def _act(self, word: str) -> None:
        self.hangs |= word == "hang"
        await super()._act("hang" if word == "alone" else word)  # a call that is stuck alone

    async def probe(self) -> float:
        if self.hangs:
            await asyncio.Event().wait()
        return 0.0


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class StagedEngine(PromptedEngine):
    """Kills its process at one stage of its life. Prompts do what they do in `PromptedEngine`."""

    capabilities = Capabilities(
        embeddings=1, tokenize=True, slots=4, sampling=frozenset({"max_tokens"}), can_sleep=True
    )

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage = stage

    def _reach(self, stage: str) -> None:
        if stage == self._stage:
            kill_process()

    @property
    def steps_together(self) -> bool:
        """Read as soon as the process has said that it is ready."""
        if self._stage == "ready":
            asyncio.get_running_loop().call_later(0.01, kill_process)
        return False

    @property
    def has_died(self) -> bool:
        """Read for each ping."""
        self._reach("ping")
        return False

    async def probe(self) -> float:
        self._reach("probe")
        return 0.0

    async def admit(self, job: Job) -> None:
        self._reach("admit")

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        self._reach("start")
        try:
            async for step in super().generate(job):
                yield step
                self._reach("step")
            self._reach("end")
        except (GeneratorExit, asyncio.CancelledError):
            self._reach("cancel")
            raise

    async def embed(self, inputs: Sequence[list[int] | str]) -> list[list[float]]:
        self._reach("embed")
        return await super().embed(inputs)

    async def sleep(self) -> None:
        self._reach("sleep")

    async def wake(self) -> None:
        self._reach("wake")


def create_staged(folder: str, plan: list[str]) -> StagedEngine:
    """Kill the first process at the first stage of the plan, and so on; then none any more.

    Each process leaves a file with its number, which contains its id. One of which there is a file
    `wait-NUMBER` waits until that is gone.
    """
    number = 0
    while True:
        try:
            with (Path(folder) / f"start-{number}").open("x") as file:
                file.write(str(os.getpid()))
            break
        except FileExistsError:
            number += 1
    waiting = Path(folder) / f"wait-{number}"
    while waiting.exists():
        time.sleep(0.001)
    stage = plan[number] if number < len(plan) else ""
    if stage == "create":
        kill_process()
    return StagedEngine(stage)


def create_prompted() -> PromptedEngine:
    return PromptedEngine()


def create_probed_prompted() -> ProbedPromptedEngine:
    return ProbedPromptedEngine()


def create_minimal() -> MinimalEngine:
    return MinimalEngine()


def create_counting() -> CountingEngine:
    return CountingEngine()


def create_scope_reader() -> ScopeReader:
    return ScopeReader()


def create_raising() -> RaisingEngine:
    return RaisingEngine()


def create_printing() -> PrintingEngine:
    return PrintingEngine()


def create_unclosable() -> UnclosableEngine:
    return UnclosableEngine()


def create_unless(flag: str) -> MinimalEngine:
    """Fail while the file exists."""
    if Path(flag).exists():
        raise ModelBroken("The flag file exists.")
    return MinimalEngine()


async def raise_model_broken() -> MinimalEngine:
    raise ModelBroken("The file holds no model.")


def raise_exception() -> MinimalEngine:
    raise ZeroDivisionError("/a/secret/path")


def raise_missing_library() -> MinimalEngine:
    raise ImportError("libgomp.so.1: cannot open shared object file: No such file or directory")


def abort_process() -> MinimalEngine:
    os.abort()


class CrashingEngine(MinimalEngine):
    """Ends its process in the way that the prompt names; other prompts get words."""

    capabilities = Capabilities(sampling=frozenset({"max_tokens"}))

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        prompt = str(job.prompt)
        yield Step(text="word", tokens=1)
        await asyncio.sleep(0.05)
        if "abort" in prompt:
            os.abort()
        if "segfault" in prompt:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "exit" in prompt:
            os._exit(70)
        yield Step(text=" word", tokens=1, finish="stop")


class BlockingEngine(MinimalEngine):
    """Blocks the event loop that it runs on."""

    async def generate(self, job: Job) -> AsyncGenerator[Step, None]:
        if "block" in str(job.prompt):
            block_event_loop()
        yield Step(text="word", tokens=1, finish="stop")


def block_event_loop() -> None:
    time.sleep(4)


def create_crashing() -> CrashingEngine:
    return CrashingEngine()


class ProbedScript(ScriptedEngine):
    """A scripted engine with a sign of life, as the default engine has it."""

    async def probe(self) -> float:
        return 0.0


def create_probed_script(script: list[dict[str, Json]], **settings: Json) -> ProbedScript:
    return ProbedScript([msgspec.convert(reply, Reply) for reply in script], **settings)
