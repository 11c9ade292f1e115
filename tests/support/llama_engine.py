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
HARD = "😀日本語 naïve 🇫🇷"  # characters whose bytes are tokens of their own
CONTEXT = 256


class Bench:
    """An engine and the loop it lives in, for tests that share them."""

    def __init__(self, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        try:
            self.engine: LlamaCppEngine = self.run(self._make(settings))
        except BaseException:
            self._end()
            raise

    @staticmethod
    async def _make(settings: dict[str, Any]) -> LlamaCppEngine:
        return create(**settings)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self.run(self.engine.aclose())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def ids(self, text: str) -> list[int]:
        return self.run(self.engine.tokenize(text, True))

    def answer(self, prompt: str = QUESTION, **said: Any) -> Answer:
        return self.run(ask(self.engine, self.ids(prompt), **said))


class Answer:
    """All steps of a job."""

    def __init__(self, engine: LlamaCppEngine, steps: list[Step]) -> None:
        self.steps = steps
        self._pieces = engine.vocabulary.pieces or []

    def ids(self, choice: int = 0) -> list[int]:
        return [token for step in self.of(choice) for token in step.ids]

    def text(self, choice: int = 0) -> str:
        return b"".join(self._pieces[token] for token in self.ids(choice)).decode()

    def of(self, choice: int = 0) -> list[Step]:
        return [step for step in self.steps if step.choice == choice]

    def marks(self, choice: int = 0) -> list[Logprob]:
        return [mark for step in self.of(choice) for mark in step.logprobs]

    def finish(self, choice: int = 0) -> str | None:
        return self.of(choice)[-1].finish

    def tokens(self, choice: int = 0) -> int:
        return sum(step.tokens for step in self.of(choice))

    def cached(self) -> int:
        return sum(step.cached_tokens or 0 for step in self.steps)


def job_of(prompt: list[int] | str, **said: Any) -> Job:
    """Fields of `Sampling` and of `Job` by name; greedy and short unless said otherwise."""
    sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16}
    for name in tuple(said):
        if name in Sampling.__struct_fields__:
            sampling[name] = said.pop(name)
    chosen = Sampling(**sampling).with_defaults(DEFAULT_SAMPLING)
    return Job(id="test", prompt=prompt, sampling=chosen, **said)


async def ask(engine: LlamaCppEngine, prompt: list[int] | str, **said: Any) -> Answer:
    job = job_of(prompt, **said)
    await engine.admit(job)
    return Answer(engine, [step async for step in engine.generate(job)])


async def refusal(work: Awaitable[Any]) -> DragomanError:
    with pytest.raises(DragomanError) as refused:
        await work
    return refused.value
