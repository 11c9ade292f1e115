"""A queue of steps for a reader that may be slow.

A reader either takes steps from the queue, or passes a consumer that is called when steps arrive
(`deliver`). A call costs neither a future nor a turn of the event loop, so an engine's message with
the steps of many jobs becomes text for all their clients in one pass. While the consumer waits for
a slow client, steps are queued as for any other reader.

Waiting steps are merged, choice by choice: texts are joined, ids and logprobs are concatenated, and
`spans` records where one step ends and the next begins. So the queue never holds more than the
answer, a slow reader does not slow the engine down, and a late reader gets everything at once.
`merge_steps` is a pure function and runs on both sides of a process boundary.

A queue is a list and at most one future; waking its reader costs that future and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol

from dragoman.errors import DragomanError
from dragoman.types import Step

MERGE_THRESHOLD = 16  # steps that may wait before they are merged


class Wait(Protocol):
    """What a consumer must wait for. It is awaited, or closed if the reader is cancelled."""

    def __await__(self) -> Generator[Any, None, None]: ...
    def close(self) -> None: ...


class StepConsumer(Protocol):
    """A reader that is called with steps."""

    @property
    def is_complete(self) -> bool:
        """Whether it needs no more steps."""
        ...

    def consume(self, steps: list[Step]) -> Wait | None:
        """Read steps. What it returns, if anything, is awaited before the next call."""
        ...


def merge_steps(steps: Iterable[Step]) -> list[Step]:
    """Merge steps into as few as possible, with choices in the order they first appear.

    The steps of one choice stay in order; steps of different choices have no order.
    """
    runs: dict[int, list[Step]] = {}
    for step in steps:
        run = runs.setdefault(step.choice, [])
        if run and _can_join(run[-1], step):
            run[-1] = _join(run[-1], step)
        else:
            run.append(step)
    return [step for run in runs.values() for step in run]


def _can_join(first: Step, second: Step) -> bool:
    """Whether the two can be joined into one step that means the same to its reader."""
    if first.finish is not None:
        return False
    if second.finish is not None and not second.tokens and not second.ids:
        return False  # a limit that the tokens before it reach takes precedence
    if not first.ids and not second.ids:
        return True
    if _has_one_id_per_token(first) and _has_one_id_per_token(second):
        return (first.text is None) == (second.text is None) or not (first.ids and second.ids)
    return False


def _has_one_id_per_token(step: Step) -> bool:
    """Whether each token has one id, and one logprob or none at all."""
    ids = len(step.ids)
    if step.text is not None and not ids:
        return False
    return step.tokens == ids and len(step.logprobs) in (0, ids)


def _join(first: Step, second: Step) -> Step:
    text = first.text
    if second.text is not None:
        text = second.text if text is None else text + second.text
    prompt_tokens, cached_tokens = second.prompt_tokens, second.cached_tokens
    return Step(
        second.choice,
        text,
        [*first.ids, *second.ids],
        first.tokens + second.tokens,
        [*first.logprobs, *second.logprobs],
        second.finish,
        second.stop_id,
        first.prompt_tokens if prompt_tokens is None else prompt_tokens,
        first.cached_tokens if cached_tokens is None else cached_tokens,
        [*first.prompt_logprobs, *second.prompt_logprobs],
        [*_get_spans(first), *_get_spans(second)],
        first.trace + second.trace,
        second.drafts,
    )


def _get_spans(step: Step) -> list[tuple[int, int]]:
    """Return where the steps inside a step begin and end; a step of ids alone needs no spans."""
    if step.spans or (step.text is None and (step.ids or not step.tokens)):
        return step.spans
    return [(len(step.text or ""), step.tokens)]


class StepQueue:
    """The steps of one job, for one reader."""

    __slots__ = (
        "_consume",
        "_create_future",
        "_error",
        "_merge_above",
        "_on_taken",
        "_steps",
        "_wake",
        "arrivals",
        "has_ended",
    )

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._merge_above = MERGE_THRESHOLD
        self._consume: Callable[[list[Step]], None] | None = None  # of a reader that is waiting
        self._create_future: Callable[[], asyncio.Future[Wait | None]] | None = None
        self._wake: asyncio.Future[Wait | None] | None = None
        self._error: DragomanError | None = None
        self.arrivals = 0  # calls of `put` so far
        self.has_ended = False
        self._on_taken: list[Callable[[], None]] = []  # called once, when the queue is empty

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, steps: list[Step]) -> bool:
        """Add steps; return whether they are queued, because the reader has not taken them yet."""
        self.arrivals += 1
        if self._consume is not None:
            self._consume(steps)
            return False
        self._steps.extend(steps)
        if len(self._steps) > self._merge_above:
            self._steps = merge_steps(self._steps)
            # steps of many choices cannot be merged into fewer
            self._merge_above = max(MERGE_THRESHOLD, 2 * len(self._steps))
        self._notify()
        return True

    def end(self, error: DragomanError | None = None) -> None:
        """End the queue, normally or with an error; the first call counts."""
        if not self.has_ended:
            self.has_ended = True
            self._error = error
            self._notify()

    async def take(self) -> list[Step]:
        """Wait for steps and return all that there are; an empty list means the normal end."""
        if not self._steps and not self.has_ended:
            await self._wait()
        if self._steps:
            return self._take_all()
        if self._error is not None:
            raise self._error
        return []

    async def deliver(self, consumer: StepConsumer) -> None:
        """Call a consumer with all steps, until the queue ends or the consumer is complete."""
        consume = partial(copy_context().run, self._call, consumer)  # type: ignore[call-arg]
        while not consumer.is_complete:
            wait: Wait | None = None
            if self._steps:
                wait = consumer.consume(self._take_all())
            elif self.has_ended:
                if self._error is not None:
                    raise self._error
                return
            else:
                self._consume = consume
                try:
                    wait = await self._wait()
                finally:
                    self._consume = None
            if wait is not None:
                await wait

    def call_when_taken(self, callback: Callable[[], None]) -> None:
        """Call a function once the reader has taken all that waits."""
        self._on_taken.append(callback)

    def get_state(self) -> int:
        """Return the state of the queue, to find out later whether steps have arrived."""
        return self.arrivals

    def has_changed(self, state: int) -> bool:
        """Whether steps have arrived since that state."""
        return self.arrivals != state

    def _call(self, consumer: StepConsumer, steps: list[Step]) -> None:
        """Call the consumer from `put`; wake `deliver` if it has something to do."""
        try:
            wait = consumer.consume(steps)
        except Exception as error:
            self._consume = None
            if self._wake is not None and not self._wake.done():
                self._wake.set_exception(error)
            return
        if wait is not None or consumer.is_complete:
            self._consume = None
            self._notify(wait)

    def _take_all(self) -> list[Step]:
        steps, self._steps = self._steps, []
        self._merge_above = MERGE_THRESHOLD
        if self._on_taken:
            callbacks, self._on_taken = self._on_taken, []
            for callback in callbacks:
                callback()
        return steps

    async def _wait(self) -> Wait | None:
        if self._create_future is None:  # looking the loop up each time costs a system call
            self._create_future = asyncio.get_running_loop().create_future
        wake = self._wake = self._create_future()
        try:
            return await wake
        except asyncio.CancelledError:
            if wake.done() and not wake.cancelled() and wake.exception() is None:
                lost = wake.result()
                if lost is not None:
                    lost.close()
            raise
        finally:
            self._wake = None

    def _notify(self, wait: Wait | None = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(wait)
        elif wait is not None:
            wait.close()
