"""A queue of steps for a reader that may be slow.

Waiting steps are merged, choice by choice: texts are joined, ids and logprobs are concatenated, and
`spans` records where one step ends and the next begins. So the queue never holds more than the
answer, a slow reader does not slow the engine down, and a late reader gets everything at once.
`merge_steps` is a pure function and runs on both sides of a process boundary.

A queue is a list and at most one future; waking its reader costs that future and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

from dragoman.errors import DragomanError
from dragoman.types import Step

MERGE_THRESHOLD = 16  # steps that may wait before they are merged
Mark: TypeAlias = tuple[list[Step], int]  # a state of a queue, see `StepQueue.get_mark`


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
    """Whether the two can be one step that means the same to its reader."""
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

    __slots__ = ("_create_future", "_error", "_merge_above", "_steps", "_wake", "ended")

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._merge_above = MERGE_THRESHOLD
        self._create_future: Callable[[], asyncio.Future[None]] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._error: DragomanError | None = None
        self.ended = False

    def __len__(self) -> int:
        return len(self._steps)

    def put(self, steps: list[Step]) -> None:
        self._steps.extend(steps)
        if len(self._steps) > self._merge_above:
            self._steps = merge_steps(self._steps)
            # steps of many choices cannot be merged into fewer
            self._merge_above = max(MERGE_THRESHOLD, 2 * len(self._steps))
        self._notify()

    def end(self, error: DragomanError | None = None) -> None:
        """End the queue, normally or with an error; the first call counts."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._notify()

    async def take(self) -> list[Step]:
        """Wait for steps and return all that there are; an empty list means the normal end."""
        if not self._steps and not self.ended:
            if self._create_future is None:  # looking the loop up each time costs a system call
                self._create_future = asyncio.get_running_loop().create_future
            self._wake = self._create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        if self._steps:
            steps, self._steps = self._steps, []
            self._merge_above = MERGE_THRESHOLD
            return steps
        if self._error is not None:
            raise self._error
        return []

    def get_mark(self) -> Mark:
        """Return the state of the queue, to find out later whether steps have arrived.

        Arrivals are not counted, which would cost something for each: steps that are taken leave a
        new list behind, and steps that wait change the size of the list.
        """
        return self._steps, sum(1 + step.tokens for step in self._steps)

    def has_changed(self, mark: Mark) -> bool:
        """Whether steps have arrived, or were taken, since the mark."""
        steps, size = self.get_mark()
        return steps is not mark[0] or size != mark[1]

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
