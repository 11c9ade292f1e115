"""The default model in an engine, for the tests that share one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

import pytest

from dragoman.engines.llamacpp.engine import LlamaCppEngine, create
from dragoman.errors import DragomanError
from dragoman.types import DEFAULT_SAMPLING, Job, Logprob, Sampling, Step

T = TypeVar("T")
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
STORY = "Once upon a time there was a small town by the sea, and in that town"
MULTIBYTE = "😀日本語 naïve 🇫🇷"  # characters whose bytes are tokens of their own
CONTEXT = 256


class EngineRunner:
    """An engine and the event loop it runs in, for tests that share them."""

    def __init__(self, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.engine: LlamaCppEngine = self.run(self._create(settings))
        except BaseException:
            self._stop_loop()
            raise

    @staticmethod
    async def _create(settings: dict[str, Any]) -> LlamaCppEngine:
        return create(**settings)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.run(self.engine.aclose())
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def encode(self, text: str) -> list[int]:
        return self.run(self.engine.tokenize(text, True))

    def generate(self, prompt: str = QUESTION, **fields: Any) -> EngineOutput:
        return self.run(generate(self.engine, self.encode(prompt), **fields))


class EngineOutput:
    """All steps of a job."""

    def __init__(self, engine: LlamaCppEngine, steps: list[Step]) -> None:
        self.steps = steps
        self._pieces = engine.vocabulary.pieces or []

    def get_ids(self, choice: int = 0) -> list[int]:
        return [token for step in self.get_steps(choice) for token in step.ids]

    def get_text(self, choice: int = 0) -> str:
        return b"".join(self._pieces[token] for token in self.get_ids(choice)).decode()

    def get_steps(self, choice: int = 0) -> list[Step]:
        return [step for step in self.steps if step.choice == choice]

    def get_logprobs(self, choice: int = 0) -> list[Logprob]:
        return [logprob for step in self.get_steps(choice) for logprob in step.logprobs]

    def get_finish(self, choice: int = 0) -> str | None:
        return self.get_steps(choice)[-1].finish

    def count_tokens(self, choice: int = 0) -> int:
        return sum(step.tokens for step in self.get_steps(choice))

    def count_cached(self) -> int:
        return sum(step.cached_tokens or 0 for step in self.steps)


def make_job(prompt: list[int] | str, **fields: Any) -> Job:
    """Make a job from fields of `Sampling` and of `Job`; greedy and short by default."""
    sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16}
    for name in tuple(fields):
        if name in Sampling.__struct_fields__:
            sampling[name] = fields.pop(name)
    resolved = Sampling(**sampling).with_defaults(DEFAULT_SAMPLING)
    return Job(id="test", prompt=prompt, sampling=resolved, **fields)


async def generate(engine: LlamaCppEngine, prompt: list[int] | str, **fields: Any) -> EngineOutput:
    job = make_job(prompt, **fields)
    await engine.admit(job)
    return EngineOutput(engine, [step async for step in engine.generate(job)])


async def get_error(work: Awaitable[Any]) -> DragomanError:
    with pytest.raises(DragomanError) as caught:
        await work
    return caught.value
