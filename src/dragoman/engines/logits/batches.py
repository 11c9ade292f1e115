"""Running the model, round by round.

A round is one forward pass over every choice that is under way, whoever asked for it, and at most
one new prompt: so a long prompt delays the others by itself and not by the queue behind it. It runs
in the model's thread, of which there is one, so a model is never called twice at once. Between two
rounds, on the event loop, steps are handed out, choices that have ended or that nobody waits for
leave, and new ones take their places. The rounds go on as long as there is a choice.

An error that the model raises ends all choices of that pass, since nobody knows what has become of
their states. One that belongs to a single choice, like a grammar that leads nowhere, ends its job.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from dragoman.engines.logits.choice import LogitsChoice
from dragoman.errors import DragomanError, EngineDown, EngineFailed

log = logging.getLogger("dragoman.engines.logits")


class LogitsModel(Protocol):
    """What a model must have. It is called from one thread only.

    A state is whatever the model wants to keep of one choice; it is over when it is let go. Logits
    are arrays, or what NumPy makes arrays of: a number for each token of the vocabulary, before any
    softmax. There may be more numbers than tokens.
    """

    def begin(self, prompt: Sequence[int]) -> tuple[Any, Any]:
        """Read a prompt: a new state, and the logits of what comes next."""
        ...

    def step(self, states: Sequence[Any], tokens: Sequence[int]) -> Any:
        """Take one more token into each state, in place; a row of logits for each."""
        ...


class BatchRunner:
    """Choices under way, at most `slots` of them, and those that wait."""

    def __init__(self, model: LogitsModel, slots: int) -> None:
        self._model = model
        self._slots = slots
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-model")
        self._waiting: deque[LogitsChoice] = deque()
        self._going: list[LogitsChoice] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, choices: Iterable[LogitsChoice]) -> None:
        if self._closed:
            raise EngineDown("The engine was closed.")
        self._waiting.extend(choices)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Break off what is under way, once the present pass is over."""
        self._closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while choices := self._present():
                await loop.run_in_executor(self._thread, self._round, choices)
                for choice in choices:
                    choice.tell()
        finally:
            left = [*self._going, *self._waiting]
            self._going.clear()
            self._waiting.clear()
            for choice in left:  # none, unless the rounds were broken off
                choice.error = choice.error or EngineDown("The engine was closed.")
                choice.tell()

    def _present(self) -> list[LogitsChoice]:
        """Who takes part in the next round."""
        self._going = [choice for choice in self._going if not choice.over]
        while self._waiting and len(self._going) < self._slots:
            choice = self._waiting.popleft()
            if not choice.over:
                self._going.append(choice)
                break
        return list(self._going)

    # in the model's thread

    def _round(self, choices: list[LogitsChoice]) -> None:
        begun = [choice for choice in choices if choice.begun]
        if begun:
            self._heard(begun, self._stepped)
        for choice in choices:
            if not choice.begun:
                self._heard([choice], self._begun)

    def _heard(
        self, choices: list[LogitsChoice], passing: Callable[[list[LogitsChoice]], Any]
    ) -> None:
        """Run a pass and let each choice hear its row."""
        try:
            rows = passing(choices)
        except DragomanError as error:
            for choice in choices:
                choice.error = error
        except Exception:
            log.exception("the model broke")
            for choice in choices:
                choice.error = EngineFailed("The engine failed while it worked on this request.")
        else:
            for choice, row in zip(choices, rows, strict=True):
                choice.hear(row)

    def _stepped(self, choices: list[LogitsChoice]) -> Any:
        states = [choice.state for choice in choices]
        rows = self._model.step(states, [choice.token for choice in choices])
        if len(rows) != len(choices):
            raise ValueError(f"{len(rows)} rows of logits for {len(choices)} states")
        return rows

    def _begun(self, choices: list[LogitsChoice]) -> Any:
        [choice] = choices
        choice.state, logits = self._model.begin(choice.opening)
        choice.begun = True
        return [logits]
