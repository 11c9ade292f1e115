"""Runs the model, one batch after the other.

A batch is one forward pass over every running choice of every job, and at most one new prompt: so a
long prompt delays the others by itself and not by the queue behind it. The model has one thread, so
it is never called twice at once. Between two batches, on the event loop, steps are delivered,
choices that have ended or were cancelled leave, and waiting ones take their slots. This continues
as long as there is a choice.

An exception of the model ends all choices of that pass, since their states may be corrupt. An error
that belongs to a single choice, like a grammar that allows nothing, ends its job only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

from dragoman.engines.logits.choice import LogitsChoice
from dragoman.errors import ENGINE_STOPPED, DragomanError, EngineDown, convert_engine_exception

log = logging.getLogger("dragoman.engines.logits")

State: TypeAlias = Any  # belongs to the model
Logits: TypeAlias = Any  # an array, or anything that NumPy can make an array of


class LogitsModel(Protocol):
    """The interface of a model. It is called from one thread only.

    A state is whatever the model remembers of one choice; it is freed like any Python object.
    Logits are a number for each token of the vocabulary, before any softmax; there may be more
    numbers than tokens.
    """

    def begin(self, prompt: Sequence[int]) -> tuple[State, Logits]:
        """Process a prompt; return a new state and the logits of the next token."""
        ...

    def step(self, states: Sequence[State], tokens: Sequence[int]) -> Logits:
        """Add one token to each state, in place; return a row of logits for each."""
        ...


class BatchRunner:
    """The running choices, at most `slots` of them, and the waiting ones."""

    def __init__(self, model: LogitsModel, slots: int) -> None:
        self._model = model
        self._slots = slots
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-model")
        self._waiting: deque[LogitsChoice] = deque()
        self._running: list[LogitsChoice] = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, choices: Iterable[LogitsChoice]) -> None:
        if self._is_closed:
            raise EngineDown(ENGINE_STOPPED)
        self._waiting.extend(choices)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Stop all choices once the present pass has ended."""
        self._is_closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while choices := self._select_batch():
                await loop.run_in_executor(self._thread, self._run_batch, choices)
                for choice in choices:
                    choice.deliver()
        finally:
            remaining = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            for choice in remaining:  # none, unless the engine was stopped
                choice.error = choice.error or EngineDown(ENGINE_STOPPED)
                choice.deliver()

    def _select_batch(self) -> list[LogitsChoice]:
        """Return the choices of the next batch, of which at most one has a new prompt."""
        self._running = [choice for choice in self._running if not choice.has_ended]
        while self._waiting and len(self._running) < self._slots:
            choice = self._waiting.popleft()
            if not choice.has_ended:
                self._running.append(choice)
                break
        return list(self._running)

    # in the model's thread

    def _run_batch(self, choices: list[LogitsChoice]) -> None:
        started = [choice for choice in choices if choice.has_started]
        if started:
            self._run_pass(started, self._step_model)
        for choice in choices:
            if not choice.has_started:
                self._run_pass([choice], self._begin_prompt)

    def _run_pass(
        self, choices: list[LogitsChoice], forward: Callable[[list[LogitsChoice]], Logits]
    ) -> None:
        """Run a forward pass and give each choice its row of logits."""
        try:
            rows = forward(choices)
        except DragomanError as error:
            for choice in choices:
                choice.error = error
        except Exception as error:
            log.exception("the model raised an exception")
            for choice in choices:
                choice.error = convert_engine_exception(error)
        else:
            for choice, row in zip(choices, rows, strict=True):
                choice.process(row)

    def _step_model(self, choices: list[LogitsChoice]) -> Logits:
        states = [choice.state for choice in choices]
        rows = self._model.step(states, [choice.next_token for choice in choices])
        if len(rows) != len(choices):
            raise ValueError(f"{len(rows)} rows of logits for {len(choices)} states")
        return rows

    def _begin_prompt(self, choices: list[LogitsChoice]) -> Logits:
        [choice] = choices
        choice.state, logits = self._model.begin(choice.initial_prompt)
        choice.has_started = True
        return [logits]
